// SPDX-License-Identifier: Apache-2.0

// The last step of decode.cu: removes candidates that overlap better ones, and writes the result for the host.

// Returns the remaining candidates among 32 pending ones as bits, at most ``room``. ``overlapping`` has the overlaps of
// each candidate with the others as bits. A whole warp must call this function; all threads get the same result.
__device__ u32 staying(u32 pending, const u32* overlapping, int room) {
    const u32 all = 0xffffffffu, lane = threadIdx.x & 31, below = (1u << lane) - 1u;
    const u32 better = overlapping[lane] & below;
#if ORIENTED
    // Suppressed candidates suppress others too, as in oriented_non_maximum_suppression of nms.py.
    u32 alive = __ballot_sync(all, (pending >> lane & 1u) && !better);
#else
    // Each turn decides all candidates whose better overlapping ones are decided. There are at most as
    // many turns as boxes in the longest chain of overlaps.
    u32 alive = 0, open = pending;
    while (open) {
        const bool is_open = open >> lane & 1u;
        alive |= __ballot_sync(all, is_open && !(better & (open | alive)));
        open &= ~(alive | __ballot_sync(all, is_open && (better & alive)));
    }
#endif
    return __ballot_sync(all, (alive >> lane & 1u) && __popc(alive & below) < room);
}

__device__ __forceinline__ float inside(float value, int pad, float scale, int size) {
    return fminf(fmaxf((value - (float)pad) * scale, 0.0f), (float)size);
}

// Fills the row of one candidate except its task values. Returns false if the box is empty after clipping to the image.
__device__ bool row_of(const Scratch* scratch, int index, const FrameHeader* frame, Row& row) {
    const Candidate box = scratch->boxes[index];
    row.score = __uint_as_float((u32)(scratch->best[index] >> 32));
    row.class_id = scratch->classes[index];
#if ORIENTED
    row.left = box.left;
    row.top = box.top;
    row.right = box.right;
    row.bottom = box.bottom;
    return true;  // the host clips oriented boxes, after rotating them
#else
    row.left = inside(box.left, frame->pad_left, frame->to_source_x, frame->width);
    row.top = inside(box.top, frame->pad_top, frame->to_source_y, frame->height);
    row.right = inside(box.right, frame->pad_left, frame->to_source_x, frame->width);
    row.bottom = inside(box.bottom, frame->pad_top, frame->to_source_y, frame->height);
    return row.right > row.left && row.bottom > row.top;
#endif
}

// Copies a row except its task values, which other threads write.
__device__ __forceinline__ void store_box(Row& target, const Row& row) {
    target.left = row.left;
    target.top = row.top;
    target.right = row.right;
    target.bottom = row.bottom;
    target.score = row.score;
    target.class_id = row.class_id;
}

// One block of 32 warps per frame. The candidates are processed in words of 32. The first warp decides which candidates of
// a word remain. Then each warp adds the candidates that its own candidate suppresses, if this one remains. The rows of the
// next word are loaded at the same time.
extern "C" __global__ void keep(const Batch* batch, const OUTPUT_T* outputs, Scratch* scratches, Result* results) {
    const FrameHeader* frame = frame_of(batch);
    if (!frame) return;
    const OUTPUT_T* output = own(outputs);
    Scratch* scratch = own(scratches);
    Result* result = own(results);
    Row* rows = (Row*)(result + 1);
    __shared__ u16 kept[MAX_DETECTIONS];
    __shared__ u32 suppressed[MAX_CANDIDATES / 32];
    __shared__ u32 diagonal[32];
    __shared__ u32 stayed;
    __shared__ int total;
    __shared__ int wholes[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int candidates = scratch->candidates;
    const bool column = lane < MAX_CANDIDATES / 32;
    if (warp == 0 && column) suppressed[lane] = 0;
    if (threadIdx.x == 0) total = 0;
    u32 next = column && warp < candidates ? scratch->overlaps[warp][lane] : 0;
    for (int word = 0; word * 32 < candidates; ++word) {
        const u32 bits = next;
        const int later = (word + 1) * 32 + warp;
        next = column && later < candidates ? scratch->overlaps[later][lane] : 0;
        if (lane == word) diagonal[warp] = bits;
        __syncthreads();
        if (warp == 0) {
            u32 pending = ~suppressed[word];
            if (candidates - word * 32 < 32) pending &= (1u << (candidates - word * 32)) - 1u;
            const u32 alive = staying(pending, diagonal, MAX_DETECTIONS - total);
            __syncwarp();
            if (alive >> lane & 1u) kept[total + __popc(alive & ((1u << lane) - 1u))] = (u16)(word * 32 + lane);
            __syncwarp();
            if (lane == 0) {
                stayed = alive;
                total += __popc(alive);
            }
        }
        __syncthreads();
        if (total == MAX_DETECTIONS) break;
        if (column && (ORIENTED || stayed >> warp & 1u)) atomicOr(&suppressed[lane], bits);
    }
    __syncthreads();
    // Remove empty boxes and close the gaps. One thread per box is enough, because at most 1024 candidates exist.
    const int index = threadIdx.x < total ? kept[threadIdx.x] : 0;
    Row row;
    const bool whole = threadIdx.x < total && row_of(scratch, index, frame, row);
    const u32 ballot = __ballot_sync(0xffffffffu, whole);
    if (lane == 0) wholes[warp] = __popc(ballot);
    __syncthreads();
    int place = __popc(ballot & ((1u << lane) - 1)), written = 0;
    for (int other = 0; other < 32; ++other) {
        if (other == warp) place += written;
        written += wholes[other];
    }
    if (whole) {
        store_box(rows[place], row);
        kept[place] = (u16)index;  // all threads have read their old value before the barrier
#if PROTOTYPES
        store_box(scratch->rows[place], row);
#endif
    }
    if (threadIdx.x == 0) {
        result->count = written;
        result->passed = (int)scratch->count;
        result->best_score = candidates ? __uint_as_float((u32)(scratch->best[0] >> 32)) : 0.0f;
        result->all_nan = !scratch->has_score;
        scratch->count = 0;  // for the next frame in this memory
        scratch->has_score = 0;
#if PROTOTYPES
        scratch->written = written;
#endif
    }
#if TASK_VALUE_COUNT
    __syncthreads();
    // Adjacent threads write adjacent values, because the result may be in host memory.
    for (int at = warp; at < written; at += 32) {
        const int anchor = (int)(0xffffffffu - (u32)scratch->best[kept[at]]);
        for (int i = lane; i < TASK_VALUE_COUNT; i += 32) {
            const float value = value_at(output, FIRST_TASK_VALUE + i, anchor);
            rows[at].task_values[i] = value;
#if PROTOTYPES
            scratch->rows[at].task_values[i] = value;
#endif
        }
    }
#endif
}
