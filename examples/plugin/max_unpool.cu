// SPDX-License-Identifier: Apache-2.0

// MaxUnpool of ONNX: each output pixel takes the input whose index names it, or 0.
//
// The macro ATTRIBUTES lists kernel_shape, pads and strides: 2, 4 and 2 numbers.
// x and indices have the shape (N, C, height, width); planes is N * C. An index counts the elements
// of the whole output, as MaxPool writes it. Only windows that cover a pixel can name it.

__device__ __forceinline__ int first_window(int position, int kernel, int stride) {
    return position < kernel ? 0 : (position - kernel) / stride + 1;
}

extern "C" __global__ void max_unpool(const float* x, const long long* indices, int planes,
                                      int height, int width, float* y) {
    constexpr int attributes[] = {ATTRIBUTES};
    constexpr int kernel_height = attributes[0], kernel_width = attributes[1];
    constexpr int top = attributes[2], left = attributes[3];
    constexpr int bottom = attributes[4], right = attributes[5];
    constexpr int stride_y = attributes[6], stride_x = attributes[7];
    const int out_height = (height - 1) * stride_y - top - bottom + kernel_height;
    const int out_width = (width - 1) * stride_x - left - right + kernel_width;
    const long long pixels = (long long)out_height * out_width;
    const long long target = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (target >= planes * pixels) return;
    const int row = (int)(target % pixels / out_width) + top;
    const int column = (int)(target % out_width) + left;
    const int last_row = min(height - 1, row / stride_y);
    const int last_column = min(width - 1, column / stride_x);
    float value = 0;
    for (int i = first_window(row, kernel_height, stride_y); i <= last_row; ++i)
        for (int j = first_window(column, kernel_width, stride_x); j <= last_column; ++j) {
            const long long source = (target / pixels * height + i) * width + j;
            if (indices[source] == target) value = x[source];
        }
    y[target] = value;
}
