#ifndef EGERIA_TESTS_COMMON_PLASTICITY_GRAM_MATRIX_H_
#define EGERIA_TESTS_COMMON_PLASTICITY_GRAM_MATRIX_H_

#include <cstddef>
#include <vector>

namespace egeria::plasticity {

// Returns A A^T of `batch` rows of `width` elements each (row-major), summed in double.
template <typename T>
std::vector<double> GramMatrix(const std::vector<T>& rows, size_t batch, size_t width) {
  std::vector<double> gram(batch * batch);
  for (size_t i = 0; i < batch; ++i) {
    for (size_t j = 0; j < batch; ++j) {
      for (size_t k = 0; k < width; ++k) {
        gram[i * batch + j] += static_cast<double>(rows[i * width + k]) * rows[j * width + k];
      }
    }
  }
  return gram;
}

}  // namespace egeria::plasticity

#endif  // EGERIA_TESTS_COMMON_PLASTICITY_GRAM_MATRIX_H_
