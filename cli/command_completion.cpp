// tandem completion: a shell's completions, from what the parser knows of the commands.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/commands.h"

namespace tandem::tools {
namespace {

/// An option, or a positional argument, which has no names.
struct Argument {
  std::vector<std::string> names;  // "-h", "--help"
  std::string help;
  bool takes_value;
  std::vector<std::string> values;  // that it takes; empty: any, files for instance
};

struct Command {
  std::string name, help;
  std::vector<Argument> options, positionals;
};

/// Returns the words of "TEXT:{cpu,cuda}", as the parser describes an option of known values.
std::vector<std::string> values_of(const std::string& type) {
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

Argument argument_of(const CLI::Option& option) {
  Argument argument{{},
                    option.get_description(),
                    option.get_items_expected_max() > 0,
                    values_of(option.get_type_name())};
  for (const std::string& name : option.get_snames()) argument.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) argument.names.push_back("--" + name);
  return argument;
}

Command command_of(const CLI::App& app) {
  Command command{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    (option->get_positional() ? command.positionals : command.options)
        .push_back(argument_of(*option));
  }
  return command;
}

/// The subcommands, and "help", which takes their names.
std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> commands;
  Command help{"help", "Help of a command", {}, {{{}, "command", true, {}}}};
  for (const CLI::App* command : app.get_subcommands({})) {
    commands.push_back(command_of(*command));
    help.positionals.front().values.push_back(command->get_name());
  }
  commands.push_back(help);
  return commands;
}

std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names;
  for (const Argument& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

/// Returns what the positional arguments may be.
std::vector<std::string> positional_values(const Command& command) {
  std::vector<std::string> values;
  for (const Argument& positional : command.positionals) {
    values.insert(values.end(), positional.values.begin(), positional.values.end());
  }
  return values;
}

/// Returns the text with a backslash before each of these characters.
std::string escaped(const std::string& text, const char* characters) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view(characters).find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

void print_bash(const Command& app, const std::vector<Command>& commands) {
  std::vector<std::string> first = option_names(app);
  for (const Command& command : commands) first.push_back(command.name);
  fmt::print(
      "# bash completion of tandem: . <(tandem completion bash)\n"
      "_tandem() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} words=\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    words='{}'\n"
      "  else\n"
      "    case \"${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD - 1]}}\" in\n",
      fmt::join(first, " "));
  for (const Command& command : commands) {
    for (const Argument& option : command.options) {
      if (!option.takes_value) continue;
      for (const std::string& name : option.names) {
        fmt::print("      '{} {}') words='{}' ;;\n", command.name, name,
                   fmt::join(option.values, " "));
      }
    }
  }
  for (const Command& command : commands) {
    fmt::print("      '{} '*) words='{}'; [[ $current == -* ]] && words='{}' ;;\n", command.name,
               fmt::join(positional_values(command), " "), fmt::join(option_names(command), " "));
  }
  fmt::print(
      "    esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _tandem tandem  # default: files, where there is nothing to offer\n");
}

std::string quoted_for_zsh(const std::string& text) {
  std::string quoted;
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return "'" + quoted + "'";
}

/// Returns what zsh's _arguments offers as an argument.
std::string zsh_values(const Argument& argument) {
  if (argument.values.empty()) return "_files";
  return fmt::format("({})", fmt::join(argument.values, " "));
}

void print_zsh(const Command& app, const std::vector<Command>& commands) {
  fmt::print(
      "#compdef tandem\n"
      "# zsh completion of tandem: as the file _tandem in a folder of $fpath, or\n"
      "# . <(tandem completion zsh)\n"
      "_tandem() {{\n"
      "  if ((CURRENT == 2)); then\n"
      "    local -a commands=(\n");
  for (const Command& command : commands) {
    fmt::print("      {}\n", quoted_for_zsh(command.name + ":" + escaped(command.help, ":\\")));
  }
  for (const Argument& option : app.options) {
    for (const std::string& name : option.names) {
      fmt::print("      {}\n", quoted_for_zsh(name + ":" + escaped(option.help, ":\\")));
    }
  }
  fmt::print(
      "    )\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $words[1] in\n");
  for (const Command& command : commands) {
    fmt::print("    {}) _arguments", command.name);
    for (const Argument& option : command.options) {
      const std::string value = option.takes_value ? ":value:" + zsh_values(option) : "";
      for (const std::string& name : option.names) {
        const std::string spec =
            fmt::format("{}[{}]{}", name, escaped(option.help, "[]:\\"), value);
        fmt::print(" \\\n      {}", quoted_for_zsh(spec));
      }
    }
    for (const Argument& positional : command.positionals) {
      fmt::print(" \\\n      {}", quoted_for_zsh("*:argument:" + zsh_values(positional)));
    }
    fmt::print(" ;;\n");
  }
  fmt::print(
      "  esac\n"
      "}}\n"
      "if [[ $funcstack[1] == _tandem ]]; then _tandem \"$@\"; else compdef _tandem tandem; fi\n");
}

void print_fish(const Command& app, const std::vector<Command>& commands) {
  const auto quoted = [](const std::string& text) { return "'" + escaped(text, "\\'") + "'"; };
  const auto print_option = [&](const std::string& condition, const Argument& option) {
    std::string line = fmt::format("complete -c tandem -n {}", quoted(condition));
    for (const std::string& name : option.names) {
      line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    if (!option.values.empty()) {
      line += fmt::format(" -x -a '{}'", fmt::join(option.values, " "));
    } else if (option.takes_value) {
      line += " -r";
    }
    fmt::print("{} -d {}\n", line, quoted(option.help));
  };
  fmt::print("# fish completion of tandem: tandem completion fish | source\n");
  for (const Argument& option : app.options) print_option("__fish_use_subcommand", option);
  for (const Command& command : commands) {
    fmt::print("complete -c tandem -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
               quoted(command.help));
    const std::string inside = "__fish_seen_subcommand_from " + command.name;
    for (const Argument& option : command.options) print_option(inside, option);
    const std::vector<std::string> values = positional_values(command);
    if (values.empty()) continue;
    fmt::print("complete -c tandem -n {} -f -a '{}'\n", quoted(inside), fmt::join(values, " "));
  }
}

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "Completions for a shell, to be read by it");
  const auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "Examples: . <(tandem completion bash)\n"
      "          tandem completion zsh > ~/.zfunc/_tandem\n"
      "          tandem completion fish > ~/.config/fish/completions/tandem.fish");
  command->callback([shell, &app] {
    const auto print = *shell == "bash" ? print_bash : *shell == "zsh" ? print_zsh : print_fish;
    print(command_of(app), commands_of(app));
  });
}

}  // namespace tandem::tools
