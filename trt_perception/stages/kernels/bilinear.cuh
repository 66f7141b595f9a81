// SPDX-License-Identifier: Apache-2.0

// Bilinear sampling from the four neighbours of a position, with half-pixel centres. Outside the image, the border
// repeats. Arithmetic and precision are those of the host, so that host and device give the same values: cv2.resize of
// bytes if pixels are rounded, else float32 as in torch.

// Two neighbours on one axis, and their weights: in 1/2048 if pixels are rounded, else in 1.
struct Tap { int first, second; Channel first_weight, second_weight; };

__device__ __forceinline__ Channel weight_of(float share) {
    return ROUND_PIXELS ? (Channel)__float2int_rn(share * 2048.0f) : (Channel)share;
}

__device__ __forceinline__ Tap tap_at(int index, double scale, int size, bool stop_at_border) {
    if (!ROUND_PIXELS) scale = (float)scale;  // as in torch
    const float position = (float)((index + 0.5) * scale - 0.5);
    int first = (int)floorf(position);
    float fraction = position - first;
    if (stop_at_border && first < 0) { first = 0; fraction = 0.0f; }
    if (stop_at_border && first >= size - 1) { first = size - 1; fraction = 0.0f; }
    Tap tap;
    tap.first = min(max(first, 0), size - 1);
    tap.second = min(max(first + 1, 0), size - 1);
    tap.first_weight = weight_of(1.0f - fraction);
    tap.second_weight = weight_of(fraction);
    if (!tap.second_weight) tap.second = tap.first;  // rows with weight 0 may not have been uploaded
    return tap;
}

// The four neighbours of a position share one window of 4 x 4 samples.
__device__ void bayer_neighbours(
    const u8* image, const FrameHeader* frame, const Tap& column, const Tap& row, Rgb (&pixels)[4]
) {
    const int x0 = inner(column.first, frame->width), x1 = inner(column.second, frame->width);
    const int y0 = inner(row.first, frame->height), y1 = inner(row.second, frame->height);
    int at[4][4];
#pragma unroll
    for (int y = 0; y < 4; ++y) {
        const u8* line = image + (size_t)min(y0 - 1 + y, frame->height - 1) * frame->step;
#pragma unroll
        for (int x = 0; x < 4; ++x) at[y][x] = line[min(x0 - 1 + x, frame->width - 1)];
    }
    const int red_x = column_of_red(frame, x0), red_y = row_of_red(frame, y0);
    pixels[0] = demosaic<0, 0>(at, red_x, red_y);
    pixels[1] = x1 > x0 ? demosaic<1, 0>(at, red_x, red_y) : pixels[0];
    pixels[2] = y1 > y0 ? demosaic<0, 1>(at, red_x, red_y) : pixels[0];
    pixels[3] = x1 == x0 ? pixels[2] : y1 == y0 ? pixels[1] : demosaic<1, 1>(at, red_x, red_y);
}

__device__ __forceinline__ Channel blend(int a, int b, int c, int d, const Tap& x, const Tap& y) {
    const Channel top = a * x.first_weight + b * x.second_weight;
    const Channel bottom = c * x.first_weight + d * x.second_weight;
#if ROUND_PIXELS
    return (((y.first_weight * (top >> 4)) >> 16) + ((y.second_weight * (bottom >> 4)) >> 16) + 2) >> 2;
#else
    return top * y.first_weight + bottom * y.second_weight;
#endif
}

// The colour of one resized pixel.
__device__ ResizedRgb sample(const u8* image, const FrameHeader* frame, int x, int y) {
    const Tap column = tap_at(x, frame->scale_x, frame->width, true);
    const Tap row = tap_at(y, frame->scale_y, frame->height, !ROUND_PIXELS);
    Rgb near[4];
    if (is_bayer(frame)) {
        bayer_neighbours(image, frame, column, row, near);
    } else {
        near[0] = pixel_at(image, frame, frame->format, column.first, row.first);
        near[1] = pixel_at(image, frame, frame->format, column.second, row.first);
        near[2] = pixel_at(image, frame, frame->format, column.first, row.second);
        near[3] = pixel_at(image, frame, frame->format, column.second, row.second);
    }
    ResizedRgb pixel;
    pixel.r = blend(near[0].r, near[1].r, near[2].r, near[3].r, column, row);
    pixel.g = blend(near[0].g, near[1].g, near[2].g, near[3].g, column, row);
    pixel.b = blend(near[0].b, near[1].b, near[2].b, near[3].b, column, row);
    return pixel;
}
