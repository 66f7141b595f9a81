// SPDX-License-Identifier: Apache-2.0

// Bicubic sampling from the sixteen neighbours of a position, with half-pixel centres and the coefficient a = -0.75.
// Outside the image, the border repeats. Arithmetic is float32 as in torch. If pixels are rounded, then only at the end:
// cv2.resize of bytes gives the same on x86; elsewhere, it uses weights of 11 bits, and differs by one level at most.

// Four neighbours on one axis, and their weights.
struct Taps { int place[4]; float weight[4]; };

__device__ __forceinline__ Taps taps_at(int index, double scale, int size) {
    if (!ROUND_PIXELS) scale = (float)scale;  // as in torch
    const float a = -0.75f, position = (float)((index + 0.5) * scale - 0.5);
    const int first = (int)floorf(position);
    const float near = position - first, far = 1.0f - near, farther = near + 1.0f;
    Taps taps;
    taps.weight[0] = ((a * farther - 5.0f * a) * farther + 8.0f * a) * farther - 4.0f * a;
    taps.weight[1] = ((a + 2.0f) * near - (a + 3.0f)) * near * near + 1.0f;
    taps.weight[2] = ((a + 2.0f) * far - (a + 3.0f)) * far * far + 1.0f;
    taps.weight[3] = 1.0f - taps.weight[0] - taps.weight[1] - taps.weight[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) taps.place[i] = min(max(first - 1 + i, 0), size - 1);
    return taps;
}

// The channel of a weighted sum.
__device__ __forceinline__ Channel channel_of(float sum) {
#if ROUND_PIXELS
    return clamp_byte(__float2int_rn(sum));
#else
    return sum;
#endif
}

// The colour of one resized pixel.
__device__ ResizedRgb sample(const u8* image, const FrameHeader* frame, int x, int y) {
    const Taps columns = taps_at(x, frame->scale_x, frame->width);
    const Taps rows = taps_at(y, frame->scale_y, frame->height);
    float r = 0.0f, g = 0.0f, b = 0.0f;
    for (int j = 0; j < 4; ++j) {
        float row_r = 0.0f, row_g = 0.0f, row_b = 0.0f;
        for (int i = 0; i < 4; ++i) {
            const Rgb at = pixel_at(image, frame, frame->format, columns.place[i], rows.place[j]);
            row_r += columns.weight[i] * at.r;
            row_g += columns.weight[i] * at.g;
            row_b += columns.weight[i] * at.b;
        }
        r += rows.weight[j] * row_r;
        g += rows.weight[j] * row_g;
        b += rows.weight[j] * row_b;
    }
    ResizedRgb pixel;
    pixel.r = channel_of(r);
    pixel.g = channel_of(g);
    pixel.b = channel_of(b);
    return pixel;
}
