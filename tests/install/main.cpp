// A user's program: one call on the CPU, its answer known by hand.
#include <tandem/tandem.h>

#include <cstdio>

int main() {
  using tandem::TensorView;
  float q[] = {1, 0, 1, 1}, k[] = {1, 0, 0, 1}, v[] = {2, 3, 5, 7}, o[4], state[4];
  const auto view = [](float* data) {  // [B,T,H,D] = [1,2,1,2]
    return TensorView::contiguous(data, tandem::DType::kFloat32, {1, 2, 1, 2});
  };
  tandem::gla_forward(
      {.q = view(q),
       .k = view(k),
       .v = view(v),
       .scale = 1.0,
       .o = view(o),
       .final_state = TensorView::contiguous(state, tandem::DType::kFloat32, {1, 1, 2, 2})});
  std::printf("o %g %g %g %g, state %g %g %g %g\n", o[0], o[1], o[2], o[3], state[0], state[1],
              state[2], state[3]);
  const bool right = o[0] == 2 && o[1] == 3 && o[2] == 7 && o[3] == 10 && state[0] == 2 &&
                     state[1] == 3 && state[2] == 5 && state[3] == 7;
  return right ? 0 : 1;
}
