// SPDX-License-Identifier: Apache-2.0

// Makes the maps of one image: the class of each pixel and its probability, or the depth of each pixel. A pixel is a
// weighted sum of cells of the network's output. cell_taps in trt_perception/images/results/cell_taps.py computes the cells
// and weights of each column and row, for every way of resizing. MAP_KIND says what a cell holds.

// The cells of one column or row of the map, and their weights.
struct CellTaps { int place[TAPS]; float weight[TAPS]; };

// Returns the value of a pixel. cell: a function that returns the value of a cell, given its index in the grid.
template <typename Cell>
__device__ __forceinline__ float value_at(Cell cell, const CellTaps& column, const CellTaps& row) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < TAPS; ++j) {
        const int line = row.place[j] * MAP_COLUMNS;
        float part = 0.0f;
#pragma unroll
        for (int i = 0; i < TAPS; ++i) part += column.weight[i] * cell(line + column.place[i]);
        sum += row.weight[j] * part;
    }
    return sum;
}

// Makes the maps of the image with the index ``place`` in the batch, in blocks of 32 x 8 pixels. Sets ``*invalid`` to 1 if a
// value of the network is impossible. second: the second output, if SECOND_IS_FIELD_OF_VIEW (degrees of each image) or
// SECOND_IS_SKY (probability of the sky in each cell). The parameters after the size are the DepthScaling of the image.
extern "C" __global__ void make_map(
    const MAP_T* cells, const SECOND_T* second, const CellTaps* columns, const CellTaps* rows, MAP_PIXEL* map,
    u8* confidence, int* invalid, int place, int width, int height, int is_metric, int is_inverse, float factor,
    float sky_threshold, float sky_depth
) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x >= width || y >= height) return;
    const CellTaps column = columns[x], row = rows[y];
    const size_t at = (size_t)y * width + x;
    const int count = MAP_ROWS * MAP_COLUMNS;
#if MAP_KIND == LOGITS
    cells += (size_t)place * CLASSES * count;
    float best = -INFINITY_F, total = 0.0f, check = 0.0f;
    int best_class = 0;
    for (int i = 0; i < CLASSES; ++i) {
        const MAP_T* logits = cells + (size_t)i * count;
        const float logit = value_at([&](int at) { return float_from(logits[at]); }, column, row);
        check += logit * 0.0f;  // NaN if a logit is not finite
        const bool is_better = logit > best;
        if (confidence) {
            // The sum of exp(logit - best), for the best logit so far.
            const float step = expf(is_better ? best - logit : logit - best);
            total = is_better ? total * step + 1.0f : total + step;
        }
        if (is_better) {
            best = logit;
            best_class = i;
        }
    }
    if (check != 0.0f) *invalid = 1;
    map[at] = (u8)best_class;
    if (confidence) confidence[at] = (u8)__float2int_rn(255.0f / total);
#elif MAP_KIND == IDS
    const MAP_T id = cells[(size_t)place * count + row.place[0] * MAP_COLUMNS + column.place[0]];
    if (id < 0 || id >= CLASSES) *invalid = 1;
    map[at] = (u8)id;
#else
    cells += (size_t)place * count;
#if SECOND_IS_FIELD_OF_VIEW
    const float angle = float_from(second[place]);
    if (!(angle > 0.0f && angle < 180.0f)) *invalid = 1;
    factor = 2.0f * tanf(angle * 0.00872664626f);  // pi / 360: half of the angle in radians
#elif SECOND_IS_SKY
    second += (size_t)place * count;
#endif
    float value = value_at([&](int at) {
#if SECOND_IS_SKY
        if (float_from(second[at]) >= sky_threshold) return sky_depth;
#endif
        return float_from(cells[at]) * factor;
    }, column, row);
    if (!(value - value == 0.0f)) value = NAN_F;
    if (is_metric && !is_inverse && value <= 0.0f) value = NAN_F;
    if (is_inverse && value == value) value = 1.0f / fminf(fmaxf(value, 1e-4f), 1e4f);
    map[at] = value;
#endif
}
