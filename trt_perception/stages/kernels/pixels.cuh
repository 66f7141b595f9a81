// SPDX-License-Identifier: Apache-2.0

// Converts the bytes of each supported encoding to the colour of one pixel, as OpenCV does on the host.

struct Rgb { int r, g, b; };  // 0 to 255

// A resized pixel. Its channels are whole numbers if pixels are rounded.
#if ROUND_PIXELS
typedef int Channel;
#else
typedef float Channel;
#endif
struct ResizedRgb { Channel r, g, b; };

__device__ __forceinline__ int clamp_byte(int value) { return min(max(value, 0), 255); }

// ITU-R BT.601, limited range, in OpenCV's fixed point (20 bits), so that host and device give the same bits.
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

__device__ __forceinline__ bool is_bayer(const FrameHeader* frame) {
    return frame->format >= FORMAT_BAYER_BGGR8 && frame->format <= FORMAT_BAYER_RGGB8;
}

// The position of red in the pattern's 2 x 2 square as column and row: rggb 0 0, bggr 1 1, gbrg 0 1, grbg 1 0. It is
// relative to the inner corner (x, y) of a window.
__device__ __forceinline__ int column_of_red(const FrameHeader* frame, int x) {
    return (x ^ (frame->format == FORMAT_BAYER_BGGR8 || frame->format == FORMAT_BAYER_GRBG8)) & 1;
}

__device__ __forceinline__ int row_of_red(const FrameHeader* frame, int y) {
    return (y ^ (frame->format == FORMAT_BAYER_BGGR8 || frame->format == FORMAT_BAYER_GBRG8)) & 1;
}

// The outermost pixels of the image take the colour of their inner neighbours, as in OpenCV.
__device__ __forceinline__ int inner(int index, int size) { return min(max(index, 1), size - 2); }

// Bilinear demosaicing: a missing colour is the mean of its two or four nearest samples, rounded half up. ``X`` and
// ``Y`` are the position of the sample, relative to the inner corner of the window. red_x and red_y are the position of
// red samples.
template <int X, int Y, int SIDE>
__device__ __forceinline__ Rgb demosaic(const int (&at)[SIDE][SIDE], int red_x, int red_y) {
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
    } else {  // a green sample: red is left and right in a red row, above and below in a blue row
        pixel.g = centre;
        pixel.r = red_row ? horizontal : vertical;
        pixel.b = red_row ? vertical : horizontal;
    }
    return pixel;
}

__device__ __forceinline__ Rgb grey(int value) {
    Rgb pixel = {value, value, value};
    return pixel;
}

// ``format`` must be the frame's format. With a constant, the compiler removes the switch.
__device__ __forceinline__ Rgb pixel_at(const u8* image, const FrameHeader* frame, int format, int x, int y) {
    const u8* row = image + (size_t)y * frame->step;
    Rgb pixel;
    switch (format) {  // equal for all threads; formats without a case are Bayer patterns
        case FORMAT_BGR8:
        case FORMAT_BGRA8: {
            const u8* at = row + x * (format == FORMAT_BGR8 ? 3 : 4);
            pixel.b = at[0]; pixel.g = at[1]; pixel.r = at[2];
            return pixel;
        }
        case FORMAT_RGB8:
        case FORMAT_RGBA8: {
            const u8* at = row + x * (format == FORMAT_RGB8 ? 3 : 4);
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
            const int first_is_u = format == FORMAT_NV12;
            return rgb_from_yuv(row[x], chroma[first_is_u ? 0 : 1], chroma[first_is_u ? 1 : 0]);
        }
    }
    x = inner(x, frame->width);
    y = inner(y, frame->height);
    int at[3][3];
#pragma unroll
    for (int down = 0; down < 3; ++down) {
        const u8* line = image + (size_t)(y - 1 + down) * frame->step + x - 1;
#pragma unroll
        for (int along = 0; along < 3; ++along) at[down][along] = line[along];
    }
    return demosaic<0, 0>(at, column_of_red(frame, x), row_of_red(frame, y));
}

