// SPDX-License-Identifier: Apache-2.0

// Bilinear or bicubic sampling with antialiasing, as in Pillow's resize on the host. A pixel of the network's input is
// the weighted mean of the image's pixels under it. The weights form a triangle twice as wide as the pixel, or Keys' cubic
// with a = -0.5, four times as wide. Sampling is horizontal, then vertical. If pixels are rounded, it rounds to bytes after
// each step, in Pillow's fixed point (22 bits), so that host and device give the same bytes.

const int WEIGHT_BITS = 22;

// Position: in units of half a pixel over ``resized``. A crop may enlarge a narrow image beyond 2^15 pixels.
#if CROP
typedef long long Position;
#else
typedef int Position;
#endif

// Half the filter's width in pixels, the type of its heights, and the type of the sum of heights.
#if BICUBIC
const int REACH = 2;
typedef long long Height;
typedef long long Sum;
#else
const int REACH = 1;
typedef int Height;
typedef u64 Sum;
#endif

// The image's pixels under one pixel of the input, on one axis. Pillow computes the weights in double precision. They are
// fractions of integers, so integers give the same weights: height(i) / sum of all heights, where height(i) is the height
// of the filter above pixel i.
struct Span {
    int first, count;  // first pixel, and number of pixels
    int top;           // distance at which the triangle ends: also its height
    int offset;        // distance of the first pixel from the filter's centre, negative on the left
    int stride;        // distance from one pixel to the next
    Sum inverse;       // 2^60 over the sum of all heights
#if BICUBIC
    int shift;         // so that heights have at most 30 bits
#endif
};

__device__ __forceinline__ Height height(const Span& span, int index) {
    const int away = abs(span.offset + index * span.stride);
#if BICUBIC
    const Height top = span.top, cube = top * top * top, square = (Height)away * away;
    const Height inner = square * (3 * away - 5 * top) + 2 * cube;
    const Height outer = square * (5 * top - away) - 8 * top * top * away + 4 * cube;
    return (away < top ? inner : outer) >> span.shift;
#else
    return span.top - away;
#endif
}

__device__ __forceinline__ int weight(const Span& span, int index) {
    const int shift = 60 - WEIGHT_BITS;
    return (int)((height(span, index) * span.inverse + ((Sum)1 << (shift - 1))) >> shift);
}

// Sides are below 2^15, so all values but the sum and the heights of the cubic fit into an int.
__device__ __forceinline__ Span span_at(int index, int resized, int size) {
    const Position middle = (2 * (Position)index + 1) * size;
    Span span;
    Position stride = 2 * (Position)resized;
    Position top = 2 * (Position)max(size, resized);  // for enlarging, equal to sampling without antialiasing
    const Position before = middle - REACH * top - resized, behind = middle + REACH * top - resized;
    span.first = before < 0 ? 0 : before / stride + 1;
    span.count = min((behind - 1) / stride + 1, (Position)size) - span.first;
    Position offset = (2 * (Position)span.first + 1) * resized - middle;
#if CROP
    for (; top >> 16; top >>= 1, stride >>= 1, offset >>= 1) {}  // such an image is enlarged, so count is small
#endif
    span.stride = stride;
    span.top = top;
    span.offset = offset;
#if BICUBIC
    span.shift = 0;
    while (2 * (Height)span.top * span.top * span.top >> span.shift >> 30) ++span.shift;
#endif
    Sum sum = 0;
    for (int i = 0; i < span.count; ++i) sum += height(span, i);
    span.inverse = (((Sum)1 << 60) + sum - 1) / sum;
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
