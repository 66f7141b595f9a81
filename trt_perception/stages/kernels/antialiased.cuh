// Bilinear sampling with antialiasing, as PIL's resize does it on the host: a pixel of the input is the mean of all the
// pixels that it covers in the image, weighted by a triangle that reaches twice as far as the input's pixels are wide.
// Horizontally first, then vertically, rounded to bytes after each. Weights are float here and 22-bit fixed point in
// PIL: where a sum lies between two bytes, the other byte may come out.

// What one pixel of the input covers on one axis.
struct Span {
    int first, count;  // pixels of the image
    float offset;      // from the triangle's middle to the middle of the first of them
    float slope;       // of the triangle, per pixel
    float norm;        // one over the sum of all weights
};

__device__ __forceinline__ float weight(const Span& span, int index) {
    return fmaxf(0.0f, 1.0f - fabsf(index + span.offset) * span.slope);
}

__device__ __forceinline__ Span span_at(int index, double scale, int size) {
    const double reach = fmax(scale, 1.0);  // enlarged, it is ordinary bilinear sampling
    const double middle = (index + 0.5) * scale;
    Span span;
    span.first = max((int)(middle - reach + 0.5), 0);
    span.count = min((int)(middle + reach + 0.5), size) - span.first;
    span.offset = (float)(span.first + 0.5 - middle);
    span.slope = 1.0f / (float)reach;
    float sum = 0.0f;
    for (int i = 0; i < span.count; ++i) sum += weight(span, i);
    span.norm = 1.0f / sum;
    return span;
}

__device__ __forceinline__ int byte_of(float value) { return clamp_byte((int)floorf(value + 0.5f)); }

// The colour of one resized pixel.
__device__ Rgb sample(const u8* image, const FrameHeader* frame, int x, int y) {
    const Span columns = span_at(x, frame->scale_x, frame->width);
    const Span rows = span_at(y, frame->scale_y, frame->height);
    float r = 0.0f, g = 0.0f, b = 0.0f;
    for (int j = 0; j < rows.count; ++j) {
        float row_r = 0.0f, row_g = 0.0f, row_b = 0.0f;
        for (int i = 0; i < columns.count; ++i) {
            const Rgb at = pixel_at(image, frame, columns.first + i, rows.first + j);
            const float share = weight(columns, i);
            row_r += share * at.r;
            row_g += share * at.g;
            row_b += share * at.b;
        }
        const float share = weight(rows, j);
        r += share * byte_of(row_r * columns.norm);
        g += share * byte_of(row_g * columns.norm);
        b += share * byte_of(row_b * columns.norm);
    }
    Rgb pixel;
    pixel.r = byte_of(r * rows.norm);
    pixel.g = byte_of(g * rows.norm);
    pixel.b = byte_of(b * rows.norm);
    return pixel;
}
