// projection, rms_norm_gemm, gemm_swiglu and gated_output give the same bits whatever else the GPU
// does: 100 calls beside a busy stream, 100 replays of a captured graph. In these the order of sums
// could depend on who is ready first: parts of the contracted axis, parts of rows, statistics of
// rows that several CTAs make.
#include <gtest/gtest.h>

#include "same_bits.h"

namespace tandem::tools {
namespace {

Case parse(const std::string& op, const std::string& fields) {
  const std::string line = R"([{"name": "a", "dtype": ["bf16"], "tags": [], )" + fields + "}]";
  return parse_cases(op, line, "test")[0];
}

class GpuProductsDeterminism : public GpuSameBits {
 protected:
  static RepeatedCall repeated() {
    return {*GetParam().operation, parse(GetParam().operation->name, GetParam().fields),
            find_operation("linear_scan"),
            parse("linear_scan", R"("axes": {"B": 4, "T": 4096, "d": 256, "D": 64},
                                    "decay": {"kind": "log_decay", "distribution": "normal_bench"})")};
  }
};

TEST_P(GpuProductsDeterminism, CallsBesideABusyStream) { expect_same_bits_of_calls(repeated()); }
TEST_P(GpuProductsDeterminism, ReplaysOfAGraph) { expect_same_bits_of_replays(repeated()); }

// Few rows, whose weights are a stream, in parts of d; rows of one wave; more tiles than CTAs; and
// what TMA cannot read.
const std::vector<NamedShape> kProjection = {
    {nullptr, "FewRows", R"("axes": {"M": 16, "d": 4096}, "segments": ["512 silu bias"])"},
    {nullptr, "OneWave", R"("axes": {"M": 300, "d": 4096}, "segments": ["2048 l2_normalize 128"])"},
    {nullptr, "ManyTiles", R"("axes": {"M": 3000, "d": 512},
                              "segments": ["2048 silu", "512 l2_normalize 64", "16 none fp32"])"},
    {nullptr, "OddRows", R"("axes": {"M": 67, "d": 33}, "segments": ["35 silu bias"],
                            "strides": "odd")"}};
const std::vector<NamedShape> kRmsNormGemm = {
    {nullptr, "FewRows", R"("axes": {"M": 16, "d": 4096}, "segments": ["512 none"])"},
    {nullptr, "ManyTiles",
     R"("axes": {"M": 3000, "d": 512}, "segments": ["2048 none", "24 none"])"},
    {nullptr, "LongRows", R"("axes": {"M": 40, "d": 8200}, "segments": ["24 none"])"}};
const std::vector<NamedShape> kGemmSwiglu = {
    {nullptr, "FewRows", R"("axes": {"M": 16, "d": 4096, "F": 512})"},
    {nullptr, "OneWave", R"("axes": {"M": 200, "d": 2048, "F": 2048}, "norm": "same")"},
    {nullptr, "ManyTiles", R"("axes": {"M": 3000, "d": 512, "F": 1024})"}};
const std::vector<NamedShape> kGatedOutput = {
    {nullptr, "FewRows", R"("axes": {"M": 16, "d_in": 4096, "d": 512}, "output_gate": "silu",
                            "output_norm": "rms_norm", "norm": "same", "sum": "yes")"},
    {nullptr, "WholeRows", R"("axes": {"M": 3000, "d_in": 2048, "d": 2048}, "output_gate": "silu",
                              "output_norm": "rms_norm", "norm": "same", "sum": "yes")"},
    {nullptr, "Groups", R"("axes": {"M": 1000, "d_in": 1024, "d": 1024}, "output_gate": "silu",
                           "group_norm": "same", "group_width": 128, "output_norm": "layer_norm",
                           "norm": "same", "sum": "yes")"}};

void add(std::vector<NamedShape>& all, const char* op, const std::vector<NamedShape>& shapes) {
  const auto of_op =
      with_operations({&find_operation(op), &find_operation(op, "backward")}, shapes);
  all.insert(all.end(), of_op.begin(), of_op.end());
}

std::vector<NamedShape> all_shapes() {
  std::vector<NamedShape> all;
  add(all, "projection", kProjection);
  add(all, "rms_norm_gemm", kRmsNormGemm);
  add(all, "gemm_swiglu", kGemmSwiglu);
  add(all, "gated_output", kGatedOutput);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cuda, GpuProductsDeterminism, testing::ValuesIn(all_shapes()),
                         [](const testing::TestParamInfo<NamedShape>& info) {
                           return info.param.operation->name + "_" + GpuSameBits::name_of(info);
                         });

}  // namespace
}  // namespace tandem::tools
