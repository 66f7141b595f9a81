// Makes the maps of one image: the class of each pixel and its probability, or the depth of each pixel. A pixel is a
// weighted sum of cells of the network's output. cell_taps in trt_perception/images/results/cell_taps.py computes the cells
// and weights of each column and row, for every way of resizing. MAP_KIND says what a cell holds.

// The cells of one column or row of the map, and their weights.
struct CellTaps { int place[TAPS]; float weight[TAPS]; };

__device__ __forceinline__ float value_at(const MAP_T* cells, const CellTaps& column, const CellTaps& row) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < TAPS; ++j) {
        const MAP_T* line = cells + row.place[j] * MAP_COLUMNS;
        float part = 0.0f;
#pragma unroll
        for (int i = 0; i < TAPS; ++i) part += column.weight[i] * float_from(line[column.place[i]]);
        sum += row.weight[j] * part;
    }
    return sum;
}

// Makes the maps of the image with the index ``place`` in the batch, in blocks of 32 x 8 pixels. Sets ``*invalid`` to 1 if a
// value of the network is impossible. degrees: Depth Pro's field of view of each image, or null.
extern "C" __global__ void make_map(
    const MAP_T* cells, const FOV_T* degrees, const CellTaps* columns, const CellTaps* rows, MAP_PIXEL* map, u8* confidence,
    int* invalid, int place, int width, int height
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
        const float logit = value_at(cells + (size_t)i * count, column, row);
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
    float factor = 1.0f;
    if (degrees) {
        const float angle = float_from(degrees[place]);
        if (!(angle > 0.0f && angle < 180.0f)) *invalid = 1;
        factor = 2.0f * tanf(angle * 0.00872664626f);  // pi / 360: half of the angle in radians
    }
    float value = value_at(cells + (size_t)place * count, column, row) * factor;
    if (!(value - value == 0.0f)) value = NAN_F;
    if (METRIC && !INVERSE && value <= 0.0f) value = NAN_F;
    if (INVERSE && value == value) value = 1.0f / fminf(fmaxf(value, 1e-4f), 1e4f);
    map[at] = value;
#endif
}
