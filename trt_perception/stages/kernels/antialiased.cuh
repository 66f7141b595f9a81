// Bilinear sampling with antialiasing, as in Pillow's resize on the host. A pixel of the network's input is the weighted
// mean of the image's pixels under it. The weights form a triangle twice as wide as the pixel. Sampling is horizontal,
// then vertical. If pixels are rounded, it rounds to bytes after each step, in Pillow's fixed point (22 bits), so that
// host and device give the same bytes.

const int WEIGHT_BITS = 22;

// The image's pixels under one pixel of the input, on one axis. Pillow computes the weights in double precision. They are
// fractions of integers, so integers give the same weights: height(i) / sum of all heights, where height(i) is the height
// of the triangle above pixel i.
struct Span {
    int first, count;  // first pixel, and number of pixels
    int top;           // height of the triangle
    int offset;        // distance of the first pixel from the triangle's centre, negative on the left
    int stride;        // distance from one pixel to the next
    u64 inverse;       // 2^60 over the sum of all heights
};

__device__ __forceinline__ int height(const Span& span, int index) {
    return span.top - abs(span.offset + index * span.stride);
}

__device__ __forceinline__ int weight(const Span& span, int index) {
    const int shift = 60 - WEIGHT_BITS;
    return (int)((height(span, index) * span.inverse + (1ull << (shift - 1))) >> shift);
}

// Sides are below 2^15, so all values but the sum fit into an int.
__device__ __forceinline__ Span span_at(int index, int resized, int size) {
    const int middle = (2 * index + 1) * size;  // in units of half a pixel over ``resized``
    Span span;
    span.stride = 2 * resized;
    span.top = 2 * max(size, resized);  // for enlarging, equal to bilinear sampling without antialiasing
    const int before = middle - span.top - resized, behind = middle + span.top - resized;
    span.first = before < 0 ? 0 : before / span.stride + 1;
    span.count = min((behind - 1) / span.stride + 1, size) - span.first;
    span.offset = (2 * span.first + 1) * resized - middle;
    u64 sum = 0;
    for (int i = 0; i < span.count; ++i) sum += height(span, i);
    span.inverse = ((1ull << 60) + sum - 1) / sum;
    return span;
}

// The channel of a weighted sum.
__device__ __forceinline__ Channel channel_of(Channel sum) {
#if ROUND_PIXELS
    return clamp_byte(sum >> WEIGHT_BITS);
#else
    return sum / (1 << WEIGHT_BITS);
#endif
}

template <int FORMAT>
__device__ ResizedRgb filtered(const u8* image, const FrameHeader* frame, const Span& columns, const Span& rows) {
    const Channel half = ROUND_PIXELS ? 1 << (WEIGHT_BITS - 1) : 0;
    Channel r = half, g = half, b = half;
    for (int j = 0; j < rows.count; ++j) {
        Channel row_r = half, row_g = half, row_b = half;
        for (int i = 0; i < columns.count; ++i) {
            const Rgb at = pixel_at(image, frame, FORMAT, columns.first + i, rows.first + j);
            const int share = weight(columns, i);
            row_r += share * at.r;
            row_g += share * at.g;
            row_b += share * at.b;
        }
        const int share = weight(rows, j);
        r += share * channel_of(row_r);
        g += share * channel_of(row_g);
        b += share * channel_of(row_b);
    }
    ResizedRgb pixel;
    pixel.r = channel_of(r);
    pixel.g = channel_of(g);
    pixel.b = channel_of(b);
    return pixel;
}

// The colour of one resized pixel.
__device__ ResizedRgb sample(const u8* image, const FrameHeader* frame, int x, int y) {
    const Span columns = span_at(x, frame->resized_width, frame->width);
    const Span rows = span_at(y, frame->resized_height, frame->height);
    switch (frame->format) {
#define FILTERED(FORMAT) case FORMAT: return filtered<FORMAT>(image, frame, columns, rows);
        EACH_FORMAT(FILTERED)
#undef FILTERED
    }
    return ResizedRgb();  // not reached
}
