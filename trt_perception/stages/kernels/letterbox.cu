// From the pixels of any known encoding to the network's input, in one pass.
//
// One thread makes one pixel of the input: the four neighbours of its place in the image are turned into RGB
// bytes, blended to a byte, normalised and written to the three planes; as OpenCV does it on the host.

struct Rgb { int r, g, b; };  // 0 to 255

// One axis of OpenCV's bilinear resize of bytes: two neighbours and their weights in 1/2048, with half-pixel
// centres; outside the image the border repeats. The same arithmetic in the same precision, so that host and
// device give the same bytes.
struct Tap { int first, second, first_weight, second_weight; };

__device__ __forceinline__ Tap tap_at(int index, double scale, int size, bool stop_at_border) {
    const float position = (float)((index + 0.5) * scale - 0.5);
    int first = (int)floorf(position);
    float fraction = position - first;
    if (stop_at_border && first < 0) { first = 0; fraction = 0.0f; }
    if (stop_at_border && first >= size - 1) { first = size - 1; fraction = 0.0f; }
    Tap tap;
    tap.first = min(max(first, 0), size - 1);
    tap.second = min(max(first + 1, 0), size - 1);
    tap.first_weight = __float2int_rn((1.0f - fraction) * 2048.0f);
    tap.second_weight = __float2int_rn(fraction * 2048.0f);
    return tap;
}

__device__ __forceinline__ int clamp_byte(int value) { return min(max(value, 0), 255); }

// ITU-R BT.601, limited range, in OpenCV's fixed point (20 bits), so that host and device agree to the bit.
__device__ __forceinline__ Rgb rgb_from_yuv(int y, int u, int v) {
    const int half = 1 << 19;
    const int luma = max(0, y - 16) * 1220542;
    u -= 128;
    v -= 128;
    Rgb pixel;
    pixel.r = clamp_byte((luma + half + 1673527 * v) >> 20);
    pixel.g = clamp_byte((luma + half - 852492 * v - 409993 * u) >> 20);
    pixel.b = clamp_byte((luma + half + 2116026 * u) >> 20);
    return pixel;
}

// Bilinear demosaicing: a missing colour is the mean of its two or four nearest samples, rounded half up. ``X`` and
// ``Y`` say which of the window's inner 2 x 2 samples is meant; red_x and red_y where red samples are.
template <int X, int Y>
__device__ __forceinline__ Rgb demosaic(const int (&at)[4][4], int red_x, int red_y) {
    const int centre = at[1 + Y][1 + X];
    const int horizontal = (at[1 + Y][X] + at[1 + Y][2 + X] + 1) >> 1;
    const int vertical = (at[Y][1 + X] + at[2 + Y][1 + X] + 1) >> 1;
    const int cross = (at[1 + Y][X] + at[1 + Y][2 + X] + at[Y][1 + X] + at[2 + Y][1 + X] + 2) >> 2;
    const int diagonal = (at[Y][X] + at[Y][2 + X] + at[2 + Y][X] + at[2 + Y][2 + X] + 2) >> 2;
    const bool red_column = red_x == X, red_row = red_y == Y;
    Rgb pixel;
    if (red_column == red_row) {  // a red or a blue sample
        pixel.g = cross;
        pixel.r = red_row ? centre : diagonal;
        pixel.b = red_row ? diagonal : centre;
    } else {  // a green sample: red is beside it in a red row, above and below in a blue one
        pixel.g = centre;
        pixel.r = red_row ? horizontal : vertical;
        pixel.b = red_row ? vertical : horizontal;
    }
    return pixel;
}

// The four neighbours of a place share one window of 4 x 4 samples. The image's outermost pixels take the colour of
// their inner neighbours, as OpenCV has it.
__device__ void bayer_neighbours(
    const u8* image, const FrameHeader* frame, const Tap& column, const Tap& row, Rgb (&pixels)[4]
) {
    const int x0 = min(max(column.first, 1), frame->width - 2), x1 = min(max(column.second, 1), frame->width - 2);
    const int y0 = min(max(row.first, 1), frame->height - 2), y1 = min(max(row.second, 1), frame->height - 2);
    int at[4][4];
#pragma unroll
    for (int y = 0; y < 4; ++y) {
        const u8* line = image + (size_t)min(y0 - 1 + y, frame->height - 1) * frame->step;
#pragma unroll
        for (int x = 0; x < 4; ++x) at[y][x] = line[min(x0 - 1 + x, frame->width - 1)];
    }
    // Where red stands in the pattern's 2 x 2 square: rggb 0 0, bggr 1 1, gbrg 0 1, grbg 1 0 (column, row).
    const int red_x = frame->format == FORMAT_BAYER_BGGR8 || frame->format == FORMAT_BAYER_GRBG8;
    const int red_y = frame->format == FORMAT_BAYER_BGGR8 || frame->format == FORMAT_BAYER_GBRG8;
    const int column_of_red = (x0 ^ red_x) & 1, row_of_red = (y0 ^ red_y) & 1;  // in the window
    pixels[0] = demosaic<0, 0>(at, column_of_red, row_of_red);
    pixels[1] = x1 > x0 ? demosaic<1, 0>(at, column_of_red, row_of_red) : pixels[0];
    pixels[2] = y1 > y0 ? demosaic<0, 1>(at, column_of_red, row_of_red) : pixels[0];
    pixels[3] = x1 == x0 ? pixels[2] : y1 == y0 ? pixels[1] : demosaic<1, 1>(at, column_of_red, row_of_red);
}

__device__ __forceinline__ Rgb grey(int value) {
    Rgb pixel = {value, value, value};
    return pixel;
}

__device__ __forceinline__ Rgb pixel_at(const u8* image, const FrameHeader* frame, int x, int y) {
    const u8* row = image + (size_t)y * frame->step;
    Rgb pixel;
    switch (frame->format) {  // the same for all threads
        case FORMAT_BGR8:
        case FORMAT_BGRA8: {
            const u8* at = row + x * (frame->format == FORMAT_BGR8 ? 3 : 4);
            pixel.b = at[0]; pixel.g = at[1]; pixel.r = at[2];
            return pixel;
        }
        case FORMAT_RGB8:
        case FORMAT_RGBA8: {
            const u8* at = row + x * (frame->format == FORMAT_RGB8 ? 3 : 4);
            pixel.r = at[0]; pixel.g = at[1]; pixel.b = at[2];
            return pixel;
        }
        case FORMAT_MONO8:
            return grey(row[x]);
        case FORMAT_MONO16: {
            const u8* at = row + 2 * x;
            const int value = frame->big_endian ? at[0] << 8 | at[1] : at[1] << 8 | at[0];
            return grey((value + 128) / 257);
        }
        case FORMAT_UYVY: {
            const u8* pair = row + 4 * (x >> 1);
            return rgb_from_yuv(pair[1 + 2 * (x & 1)], pair[0], pair[2]);
        }
        case FORMAT_YUYV: {
            const u8* pair = row + 4 * (x >> 1);
            return rgb_from_yuv(pair[2 * (x & 1)], pair[1], pair[3]);
        }
        case FORMAT_NV12:
        case FORMAT_NV21: {
            const u8* chroma = image + (size_t)(frame->height + (y >> 1)) * frame->step + (x & ~1);
            const int first_is_u = frame->format == FORMAT_NV12;
            return rgb_from_yuv(row[x], chroma[first_is_u ? 0 : 1], chroma[first_is_u ? 1 : 0]);
        }
    }
    return grey(0);  // not reached: Bayer has its own way
}

__device__ __forceinline__ int blend(int a, int b, int c, int d, const Tap& x, const Tap& y) {
    const int top = a * x.first_weight + b * x.second_weight;
    const int bottom = c * x.first_weight + d * x.second_weight;
    return (((y.first_weight * (top >> 4)) >> 16) + ((y.second_weight * (bottom >> 4)) >> 16) + 2) >> 2;
}

extern "C" __global__ void letterbox(const FrameHeader* frame, const u8* image, INPUT_T* tensor) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= NET_WIDTH || y >= NET_HEIGHT) return;
    const int inside_x = x - frame->pad_left;
    const int inside_y = y - frame->pad_top;
    Rgb pixel = grey(PAD_VALUE);
    if (inside_x >= 0 && inside_x < frame->resized_width && inside_y >= 0 && inside_y < frame->resized_height) {
        const Tap column = tap_at(inside_x, frame->scale_x, frame->width, true);
        const Tap row = tap_at(inside_y, frame->scale_y, frame->height, false);
        Rgb near[4];
        if (frame->format >= FORMAT_BAYER_BGGR8 && frame->format <= FORMAT_BAYER_RGGB8) {
            bayer_neighbours(image, frame, column, row, near);
        } else {
            near[0] = pixel_at(image, frame, column.first, row.first);
            near[1] = pixel_at(image, frame, column.second, row.first);
            near[2] = pixel_at(image, frame, column.first, row.second);
            near[3] = pixel_at(image, frame, column.second, row.second);
        }
        pixel.r = blend(near[0].r, near[1].r, near[2].r, near[3].r, column, row);
        pixel.g = blend(near[0].g, near[1].g, near[2].g, near[3].g, column, row);
        pixel.b = blend(near[0].b, near[1].b, near[2].b, near[3].b, column, row);
    }
    const int plane = NET_WIDTH * NET_HEIGHT;
    INPUT_T* target = tensor + y * NET_WIDTH + x;
    // Channels in the tensor's order: RGB_ORDER says whether the first is red.
    store(target, (RGB_ORDER ? pixel.r : pixel.b) * GAIN_0 + BIAS_0);
    store(target + plane, pixel.g * GAIN_1 + BIAS_1);
    store(target + 2 * plane, (RGB_ORDER ? pixel.b : pixel.r) * GAIN_2 + BIAS_2);
}
