#pragma once
#include <algorithm>

#include "cuda/kernels/vec.cuh"

/// Many tensors in one launch: their addresses are parameters of the kernel, so a launch can be captured, and blocks
/// share the work in chunks of one size, so that a large tensor beside many small ones keeps every block busy.
namespace cuttle::cuda {

enum class Element : std::uint8_t { none, f32, f16, bf16 };

inline Element element_of(const char* op, const Tensor& t) {
  if (!t.defined()) return Element::none;
  switch (t.dtype()) {
    case DType::f32: return Element::f32;
    case DType::f16: return Element::f16;
    case DType::bf16: return Element::bf16;
    default: throw DtypeError(std::string(op) + ": no CUDA kernel for " + t.str(), "use f32, f16 or bf16");
  }
}

/// Up to kMost rows of kPointers equally long arrays. Parameters may have 4 KB, since CUDA 12.1 32,764 bytes.
template <int kPointers> struct TensorTable {
  static constexpr std::int64_t kChunk = 4096;
  struct Row {
    void* at[kPointers] = {};
    Element element[kPointers] = {};
    bool aligned = false;  ///< all addresses are multiples of 16
    float decay = 0;
    std::int64_t count = 0;

    void set(const char* op, int i, const Tensor& t) {
      at[i] = t.defined() ? t.raw_mutable_data() : nullptr;
      element[i] = element_of(op, t);
    }
  };
  static constexpr int kMost = CUDART_VERSION >= 12010 ? 192 : 3500 / static_cast<int>(sizeof(Row) + sizeof(unsigned));

  int tensors = 0;
  unsigned first_chunk[kMost + 1] = {};  ///< of each tensor; behind the last the number of chunks
  Row rows[kMost];

  __host__ __device__ unsigned chunks() const { return first_chunk[tensors]; }
  void push_back(Row row) {
    row.aligned = std::all_of(std::begin(row.at), std::end(row.at),
                              [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; });
    rows[tensors] = row;
    first_chunk[tensors + 1] = first_chunk[tensors] + static_cast<unsigned>((row.count + kChunk - 1) / kChunk);
    ++tensors;
  }
};
static_assert(sizeof(TensorTable<5>) < (CUDART_VERSION >= 12010 ? 32000 : 4000));

/// Calls launch(table, blocks, is_last) with row(0), row(1)... row(count - 1), once unless there are more than a table
/// holds. Rows without elements are left out. No more blocks than stay on the card together share the chunks evenly.
template <int kPointers, class MakeRow, class Launch>
void for_tables(const Context& context, int blocks_each, std::size_t count, MakeRow row, Launch launch) {
  for (std::size_t i = 0; i < count;) {
    TensorTable<kPointers> table;
    for (; i < count; ++i) {
      const auto next = row(i);
      if (next.count == 0) continue;
      if (table.tensors == table.kMost) break;
      table.push_back(next);
    }
    const unsigned most = static_cast<unsigned>(context.multiprocessors() * blocks_each);
    if (table.tensors > 0) launch(table, std::min(table.chunks(), most), i == count);
  }
}

/// Calls step.template operator()<N>(row, i) for all elements, N of them from i on, in chunks that the blocks share.
template <int kPointers, class Step> __device__ void for_elements(const TensorTable<kPointers>& table, Step step) {
  constexpr int kWide = 4;
  constexpr std::int64_t kChunk = TensorTable<kPointers>::kChunk;
  for (unsigned chunk = blockIdx.x; chunk < table.chunks(); chunk += gridDim.x) {
    int tensor = 0, last = table.tensors - 1;
    while (tensor < last) {  // the last one that starts no later than the chunk
      const int middle = (tensor + last + 1) / 2;
      if (table.first_chunk[middle] <= chunk)
        tensor = middle;
      else
        last = middle - 1;
    }
    const auto& row = table.rows[tensor];
    const std::int64_t begin = (chunk - table.first_chunk[tensor]) * kChunk;
    const int size = static_cast<int>(row.count - begin < kChunk ? row.count - begin : kChunk);
    const int wide = row.aligned ? size / kWide * kWide : 0;
    for (int i = static_cast<int>(threadIdx.x) * kWide; i < wide; i += kThreads * kWide) {
      step.template operator()<kWide>(row, begin + i);
    }
    for (int i = wide + static_cast<int>(threadIdx.x); i < size; i += kThreads) {
      step.template operator()<1>(row, begin + i);
    }
  }
}

template <class T, int N> __device__ void read_as(const void* from, std::int64_t i, float (&out)[N]) {
  const Vec<T, N> v = load<N>(static_cast<const T*>(from) + i);
#pragma unroll
  for (int j = 0; j < N; ++j) out[j] = static_cast<float>(v.at[j]);
}

template <class T, int N> __device__ void write_as(void* to, std::int64_t i, const float (&values)[N]) {
  Vec<T, N> v;
#pragma unroll
  for (int j = 0; j < N; ++j) v.at[j] = T(values[j]);
  store<N>(static_cast<T*>(to) + i, v);
}

template <int N> __device__ void read(const void* from, Element element, std::int64_t i, float (&out)[N]) {
  switch (element) {
    case Element::f16: return read_as<__half>(from, i, out);
    case Element::bf16: return read_as<__nv_bfloat16>(from, i, out);
    default: return read_as<float>(from, i, out);
  }
}

/// Writes nothing where there is no such tensor.
template <int N> __device__ void write(void* to, Element element, std::int64_t i, const float (&values)[N]) {
  switch (element) {
    case Element::f32: return write_as<float>(to, i, values);
    case Element::f16: return write_as<__half>(to, i, values);
    case Element::bf16: return write_as<__nv_bfloat16>(to, i, values);
    case Element::none: return;
  }
}

}  // namespace cuttle::cuda
