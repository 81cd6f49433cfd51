# cmake -DOUTPUT=<file.cpp> -DOPS=<op,...> -DFOLDER=<cases> -P embed.cmake: the case tables as string literals.
set(content "#include <string>\nnamespace tandem::tools {\nconst char* embedded_cases(const std::string& op) {\n")
string(REPLACE "," ";" ops ${OPS})
foreach(op IN LISTS ops)
  file(READ ${FOLDER}/${op}.json json)
  string(APPEND content "  if (op == \"${op}\") return R\"json(${json})json\";\n")
endforeach()
string(APPEND content "  return nullptr;\n}\n}  // namespace tandem::tools\n")
file(WRITE ${OUTPUT} "${content}")
