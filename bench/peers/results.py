"""bench/results/<device>/<op>.json: reading, merging, writing. Rows by the rules of cli/report/results.cpp.
Standard library only."""

import datetime
import json
import math
import os
import pathlib
import shlex

KEY = ("run", "op", "direction", "case", "dtype", "provider")


def rounded(value):
    """Enough digits for any comparison; more would only be noise in a diff."""
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.4g}")


def summarize(samples):
    """Median, 10th and 90th percentile, interpolated."""
    ordered = sorted(samples)

    def quantile(part):
        at = part * (len(ordered) - 1)
        below = int(at)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (at - below)

    return {"median_us": rounded(quantile(0.5)), "p10_us": rounded(quantile(0.1)), "p90_us": rounded(quantile(0.9))}


def today():
    return datetime.datetime.now(datetime.timezone.utc).date()


def continued(run, by):
    """What a results file says of a run that another command goes on with: both commands and all versions, the rest
    (the ceilings that its first rows were judged by, the state of the device) as it began."""
    commands = [one["command"] for one in (run, by) if "command" in one]
    if len(commands) == 2 and commands[1] in commands[0].split("; "):
        commands.pop()
    joined = {"command": "; ".join(commands)} if commands else {}
    versions = {**run.get("versions", {}), **by.get("versions", {})}
    return {**by, **run, **joined, **({"versions": versions} if versions else {})}


def taken_ids(folder):
    """Ids of runs in any results file of the folder: the files of a device share one series."""
    ids = set()
    for path in folder.glob("*.json"):
        try:
            ids.update(json.loads(path.read_text())["runs"])
        except (ValueError, TypeError, KeyError):  # another tool's file
            continue
    return ids


def recorded_command(program, arguments, checkout):
    """The command as typed in the checkout, by the rules of cli/recorded_command.h: no folder of this machine."""

    def recorded(argument):
        option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
        if "/" not in value:
            return argument
        path = (checkout / value).resolve()
        inside = path.is_relative_to(checkout)
        return option + equals + (path.relative_to(checkout).as_posix() if inside else path.name)

    return f"{program} {shlex.join(map(recorded, arguments))}"


class ResultsFile:
    """Rows are merged by KEY; the file is replaced whole, by renaming, after every row."""

    def __init__(self, path, run, run_id=""):
        self.path = pathlib.Path(path)
        self.run = {**run, "date": today().isoformat()}
        self._read()  # raises now for what is no results file
        taken = taken_ids(self.path.parent)
        numbers = (f"{today():%Y%m%d}-{i}" for i in range(1, len(taken) + 2))
        self.run_id = run_id or next(name for name in numbers if name not in taken)

    def add(self, row):
        data = self._read()  # again: another tool may have written meanwhile
        row = {"run": self.run_id, **row}
        data["runs"][self.run_id] = continued(data["runs"].get(self.run_id, {}), self.run)
        rows = data["rows"]
        at = next((i for i, old in enumerate(rows) if all(old.get(key) == row[key] for key in KEY)), len(rows))
        if at < len(rows) and "counters" in rows[at] and rows[at].get("variant") == row.get("variant"):
            row.setdefault("counters", rows[at]["counters"])  # they name the run that they come from
        rows[at : at + 1] = [row]
        self._write(data)

    def _read(self):
        if not self.path.exists():
            return {"schema": 1, "runs": {}, "rows": []}
        try:
            data = json.loads(self.path.read_text())
        except ValueError as error:
            raise ValueError(f"{self.path}: not valid JSON: {error}") from error
        if not isinstance(data, dict) or data.get("schema") != 1:
            raise ValueError(f"{self.path}: schema: must be 1")
        if not isinstance(data.get("runs"), dict) or not isinstance(data.get("rows"), list):
            raise ValueError(f"{self.path}: runs must be an object, rows a list")
        return data

    def _write(self, data):
        """One run or row per line, so that a diff shows what changed."""

        def text(value):
            # NaN is no JSON: a result that went wrong has a failure text, and its error is null.
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

        runs = ",\n".join(f"  {text(name)}: {text(run)}" for name, run in data["runs"].items())
        rows = ",\n".join(f"  {text(row)}" for row in data["rows"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        new.write_text(f'{{"schema": 1,\n "runs": {{\n{runs}\n }},\n "rows": [\n{rows}\n ]}}\n')
        new.replace(self.path)
