// SPDX-License-Identifier: Apache-2.0

// Writes the mask number of each pixel: 0 outside all masks, i for the i-th row of the result. Better masks are on top.
// Must equal Masks in trt_perception/images/detections.py. A pixel belongs to a mask if it is in the box and its logit is
// above 0. The logit is the sum of the prototypes, interpolated bilinearly with half-pixel centres and weighted by the
// row's coefficients.

// The two pixels around a position, and the weight of the second pixel.
struct Near { int first, second; double share; };

__device__ __forceinline__ Near near_of(double place, int end) {
    Near near;
    near.first = (int)floor(place);
    near.second = min(near.first + 1, end - 1);
    near.share = place - near.first;
    return near;
}

// The prototype pixels for one column or row of the image, with their weights.
struct Taps { int place[4]; float share[4]; };

__device__ void fine_tap(Taps& taps, int at, int of_fine, double part, int fine, int count) {
    const double middle = fmin(fmax((of_fine + 0.5) / fine - 0.5, 0.0), count - 1.0);
    const Near near = near_of(middle, count);
    taps.place[at] = near.first;
    taps.share[at] = (float)(part * (1.0 - near.share));
    taps.place[at + 1] = near.second;
    taps.share[at + 1] = (float)(part * near.share);
}

// The taps of column or row ``index`` of the image. scale: prototype pixels per image pixel. offset: the image's corner in
// prototype pixels. fine: parts of a prototype pixel; the padding's border lies between two parts. size: pixels of the
// image on this axis. count: pixels of the prototypes on this axis.
__device__ Taps taps_of(int index, double scale, double offset, int fine, int size, int count) {
    scale *= fine;
    offset *= fine;
    const int begin = (int)rint(offset);
    const int end = begin + max(1, (int)rint(size * scale));
    const double place = fmin(fmax((index + 0.5) * scale + offset - 0.5, (double)begin), end - 1.0);
    const Near near = near_of(place, end);
    Taps taps;
    fine_tap(taps, 0, near.first, 1.0 - near.share, fine, count);
    fine_tap(taps, 2, near.second, near.share, fine, count);
    return taps;
}

__device__ __forceinline__ bool holds(const Row& row, int x, int y) {
    return x >= row.left && x < row.right && y >= row.top && y < row.bottom;
}

// The values of all prototypes at one pixel of the image.
__device__ void interpolate(const PROTOTYPE_T* prototypes, const Taps& column, const Taps& row, float* values) {
    for (int i = 0; i < TASK_VALUE_COUNT; ++i) values[i] = 0.0f;
    for (int down = 0; down < 4; ++down)
        for (int along = 0; along < 4; ++along) {
            const float share = row.share[down] * column.share[along];
            if (share == 0.0f) continue;
            const PROTOTYPE_T* at = prototypes + row.place[down] * PROTOTYPE_COLUMNS + column.place[along];
#pragma unroll
            for (int i = 0; i < TASK_VALUE_COUNT; ++i)
                values[i] += share * float_from(at[i * PROTOTYPE_ROWS * PROTOTYPE_COLUMNS]);
        }
}

// Blocks of 32 x 8 pixels of the image with the index ``place`` in the batch. The geometry is passed by arguments, because
// the header may already describe the next frame.
extern "C" __global__ void number_masks(
    const Scratch* scratches, const PROTOTYPE_T* prototypes, u16* numbers, int place, int width, int height, int fine,
    double scale_x, double scale_y, double offset_x, double offset_y
) {
    const Scratch* scratch = scratches + place;
    prototypes += (size_t)place * TASK_VALUE_COUNT * PROTOTYPE_ROWS * PROTOTYPE_COLUMNS;
    __shared__ u32 reaching[(MAX_DETECTIONS + 31) / 32];  // bits of the boxes that overlap the block
    __shared__ Taps columns[32], rows[8];
    const int left = blockIdx.x * 32, top = blockIdx.y * 8;
    const int thread = threadIdx.y * 32 + threadIdx.x;
    for (int i = thread; i < (MAX_DETECTIONS + 31) / 32; i += 256) reaching[i] = 0;
    if (thread < 32) columns[thread] = taps_of(left + thread, scale_x, offset_x, fine, width, PROTOTYPE_COLUMNS);
    else if (thread < 40) rows[thread - 32] = taps_of(top + thread - 32, scale_y, offset_y, fine, height, PROTOTYPE_ROWS);
    __syncthreads();
    for (int i = thread; i < scratch->written; i += 256) {
        const Row& row = scratch->rows[i];
        if (row.left < left + 32 && row.right > left && row.top < top + 8 && row.bottom > top)
            atomicOr(&reaching[i >> 5], 1u << (i & 31));
    }
    __syncthreads();
    const int x = left + threadIdx.x, y = top + threadIdx.y;
    if (x >= width || y >= height) return;
    float values[TASK_VALUE_COUNT];
    bool interpolated = false;
    int number = 0;
    for (int first = 0; first < scratch->written && !number; first += 32)
        for (u32 left_over = reaching[first >> 5]; left_over && !number; left_over &= left_over - 1u) {
            const int index = first + __ffs(left_over) - 1;
            const Row& row = scratch->rows[index];
            if (!holds(row, x, y)) continue;
            if (!interpolated) interpolate(prototypes, columns[threadIdx.x], rows[threadIdx.y], values);
            interpolated = true;
            float logit = 0.0f;
#pragma unroll
            for (int i = 0; i < TASK_VALUE_COUNT; ++i) logit += row.task_values[i] * values[i];
            if (logit > 0.0f) number = index + 1;
        }
    numbers[(size_t)y * width + x] = (u16)number;
}
