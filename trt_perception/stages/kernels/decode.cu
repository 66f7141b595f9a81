// SPDX-License-Identifier: Apache-2.0

// Decodes rows of anchors to the final boxes, with the rules of Dense in trt_perception/model/decoders/anchors.py. With
// GRID_STRIDES, boxes are relative to grid cells, as in YoloxRaw in the same module. OBJECTNESS, TRANSPOSED and
// GRID_STRIDES come from the decoder's anchor_row_layout(). TASK_VALUE_COUNT is the number of values after an anchor's
// scores: keypoints, mask coefficients, or one angle with ORIENTED. The result contains these values unchanged.
//
//   filter       best class of each anchor, thresholds, box check; remaining anchors become 64-bit keys
//   select_best  the MAX_CANDIDATES best keys, sorted, and their boxes
//   overlaps     the pairs of candidates that would suppress each other, as one bit per pair
//   keep         suppression from best to worst, and the result for the host
//
// Blocks with the same z work on one frame of the batch. Each frame has its own scratch memory and result.
//
// A key has the bits of the score above the inverted anchor index. Larger keys are better, and among equal scores the
// lower anchor wins. All keys differ, so the result does not depend on the order in which threads finish.

struct Candidate { float left, top, right, bottom; };

// An oriented box as a normal distribution: its centre and its covariances [[a, c], [c, b]].
struct Spread { float x, y, a, b, c; };

struct Result {
    int count;                  // number of rows after this struct
    int passed;                 // number of valid boxes above the threshold. Above MAX_CANDIDATES, boxes were left out
    float best_score;           // highest score of these anchors; 0 without anchors
    int all_nan;                // whether the scores of all anchors are NaN
};
// In source pixels. With ORIENTED in network pixels, before the rotation.
struct Row {
    float left, top, right, bottom, score;
    int class_id;
#if TASK_VALUE_COUNT
    float task_values[TASK_VALUE_COUNT];
#endif
};

struct Scratch {
    u32 count;                                       // number of keys from filter; keep resets it to zero
    int candidates;                                  // number of keys after select_best
    int has_score;                                   // set by filter if a score is not NaN; keep resets it to zero
    u64 keys[ANCHORS];
    u64 best[MAX_CANDIDATES];
    u16 class_of_anchor[ANCHORS];
    u16 classes[MAX_CANDIDATES];
    Candidate boxes[MAX_CANDIDATES];
    u32 overlaps[MAX_CANDIDATES][MAX_CANDIDATES / 32];  // one bit per later candidate, and per candidate of the same word
#if ORIENTED
    Spread spreads[MAX_CANDIDATES];
#endif
#if PROTOTYPES
    int written;                                     // number of rows in the result, for the masks
    Row rows[MAX_DETECTIONS];
#endif
};

#define RESULT_BYTES (sizeof(Result) + MAX_DETECTIONS * sizeof(Row))
#define FIRST_CLASS (OBJECTNESS ? 5 : 4)
#define FIRST_TASK_VALUE (FIRST_CLASS + CLASSES)
#define ROWS (FIRST_TASK_VALUE + TASK_VALUE_COUNT)

// The element of the block's frame in an array over the batch.
__device__ __forceinline__ const OUTPUT_T* own(const OUTPUT_T* outputs) { return outputs + (size_t)blockIdx.z * ROWS * ANCHORS; }
__device__ __forceinline__ Scratch* own(Scratch* scratch) { return scratch + blockIdx.z; }
__device__ __forceinline__ Result* own(Result* results) { return (Result*)((u8*)results + blockIdx.z * RESULT_BYTES); }

__device__ __forceinline__ float value_at(const OUTPUT_T* output, int row, int anchor) {
    return float_from(output[TRANSPOSED ? (size_t)anchor * ROWS + row : (size_t)row * ANCHORS + anchor]);
}

#ifdef GRID_STRIDES
// Converts the offset and the logarithm of the size, both in strides, to network pixels.
__device__ __forceinline__ void decode_cell(int anchor, float& x, float& y, float& width, float& height) {
    constexpr int strides[] = GRID_STRIDES;
    int cell = anchor;
    for (const int stride : strides) {
        const int columns = (NET_WIDTH + stride - 1) / stride, rows = (NET_HEIGHT + stride - 1) / stride;
        if (cell < columns * rows) {
            x = (x + (float)(cell % columns)) * (float)stride;
            y = (y + (float)(cell / columns)) * (float)stride;
            width = expf(width) * (float)stride;
            height = expf(height) * (float)stride;
            return;
        }
        cell -= columns * rows;
    }
}
#endif

__device__ __forceinline__ Candidate box_at(const OUTPUT_T* output, int anchor) {
    float x = value_at(output, 0, anchor), y = value_at(output, 1, anchor);
    float width = value_at(output, 2, anchor), height = value_at(output, 3, anchor);
#ifdef GRID_STRIDES
    decode_cell(anchor, x, y, width, height);
#endif
    const float half_width = width * 0.5f, half_height = height * 0.5f;
    Candidate box = {x - half_width, y - half_height, x + half_width, y + half_height};
    return box;
}

__device__ __forceinline__ bool is_finite(float value) { return fabsf(value) < INFINITY_F; }

// Blocks of 32 anchors x 8 groups of classes. Adjacent threads read adjacent anchors.
extern "C" __global__ void filter(const Batch* batch, const OUTPUT_T* outputs, Scratch* scratches) {
    const FrameHeader* frame = frame_of(batch);
    if (!frame) return;
    const OUTPUT_T* output = own(outputs);
    Scratch* scratch = own(scratches);
    __shared__ float group_score[8][32];
    __shared__ int group_class[8][32];
    const int lane = threadIdx.x, group = threadIdx.y;
    const int anchor = blockIdx.x * 32 + lane;
    float best = -INFINITY_F;
    int best_class = 0;
    bool not_a_number = false;
    if (anchor < ANCHORS) {
        const int share = (CLASSES + 7) / 8;
        const int last = min((group + 1) * share, CLASSES);
#pragma unroll 5
        for (int c = group * share; c < last; ++c) {
            const float score = value_at(output, FIRST_CLASS + c, anchor);
            not_a_number |= score != score;
            if (score > best) { best = score; best_class = c; }
        }
    }
    group_score[group][lane] = not_a_number ? NAN_F : best;
    group_class[group][lane] = best_class;
    __syncthreads();
    if (group != 0 || anchor >= ANCHORS) return;
    for (int g = 1; g < 8; ++g) {
        const float score = group_score[g][lane];
        not_a_number |= score != score;
        if (score > best) { best = score; best_class = group_class[g][lane]; }
    }
    if (OBJECTNESS) best *= value_at(output, 4, anchor);
    not_a_number |= best != best;
    if (not_a_number) return;
    scratch->has_score = 1;  // all threads write the same value
    if (!(best > frame->confidence_threshold) || !(best < INFINITY_F)) return;
    if (frame->filter_classes && !(frame->class_bits[best_class >> 5] >> (best_class & 31) & 1u)) return;
    const Candidate box = box_at(output, anchor);
    bool finite = is_finite(box.left) && is_finite(box.top) && is_finite(box.right) && is_finite(box.bottom);
    for (int i = 0; i < TASK_VALUE_COUNT; ++i) finite &= is_finite(value_at(output, FIRST_TASK_VALUE + i, anchor));
    if (!finite || !(box.right > box.left) || !(box.bottom > box.top)) return;
    scratch->class_of_anchor[anchor] = (u16)best_class;
    const u32 place = atomicAdd(&scratch->count, 1u);
    // Scores are positive here (the threshold is at least 0), so their bits have the same order as the scores.
    scratch->keys[place] = (u64)__float_as_uint(best) << 32 | (0xffffffffu - (u32)anchor);
}

// Finds the smallest of the MAX_CANDIDATES best keys, byte by byte from the top. Usually ends after a few bytes.
__device__ u64 selection_threshold(const u64* keys, int count, u32* histogram, u32* shared) {
    u64 prefix = 0, mask = 0;
    u32 wanted = MAX_CANDIDATES;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) histogram[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += blockDim.x)
            if ((keys[i] & mask) == prefix) atomicAdd(&histogram[keys[i] >> shift & 255], 1u);
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 above = 0;
            int digit = 255;
            while (above + histogram[digit] < wanted) above += histogram[digit--];
            shared[0] = digit;
            shared[1] = wanted - above;
            shared[2] = histogram[digit] == wanted - above;
        }
        __syncthreads();
        prefix |= (u64)shared[0] << shift;
        mask |= (u64)255 << shift;
        wanted = shared[1];
        const bool exact = shared[2];
        __syncthreads();
        if (exact) break;  // all keys of this bucket are among the best
    }
    return prefix;
}

#if ORIENTED
__device__ Spread spread_of(const Candidate& box, float angle) {
    const float across = box.right - box.left, along = box.bottom - box.top;
    const float width = across * across / 12.0f, height = along * along / 12.0f;
    const float cosine = cosf(angle), sine = sinf(angle);
    Spread spread;
    spread.x = (box.left + box.right) * 0.5f;
    spread.y = (box.top + box.bottom) * 0.5f;
    spread.a = width * (cosine * cosine) + height * (sine * sine);
    spread.b = width * (sine * sine) + height * (cosine * cosine);
    spread.c = (width - height) * cosine * sine;
    return spread;
}

// The same as prob_iou in trt_perception/stages/nms.py.
__device__ float overlap_of(const Spread& one, const Spread& other) {
    const float eps = 1e-7f;
    const float a = one.a + other.a, b = one.b + other.b, c = one.c + other.c;
    const float x = one.x - other.x, y = one.y - other.y;
    const float determinant = a * b - c * c;
    float distance = (a * y * y + b * x * x) / (determinant + eps) * 0.25f;
    distance -= c * x * y / (determinant + eps) * 0.5f;
    const float sizes = fmaxf(one.a * one.b - one.c * one.c, 0.0f) * fmaxf(other.a * other.b - other.c * other.c, 0.0f);
    const float ratio = determinant / (4.0f * sqrtf(sizes) + eps);
    distance += logf(ratio + eps) * 0.5f;
    // NaN suppresses nothing, as on the host. fminf and fmaxf would replace NaN by a number.
    if (distance != distance) return NAN_F;
    distance = fminf(fmaxf(distance, eps), 100.0f);
    return 1.0f - sqrtf(1.0f - expf(-distance) + eps);
}
#endif

__device__ float overlap_of(const Candidate& one, const Candidate& other) {
    const float width = fminf(one.right, other.right) - fmaxf(one.left, other.left);
    const float height = fminf(one.bottom, other.bottom) - fmaxf(one.top, other.top);
    const float intersection = fmaxf(width, 0.0f) * fmaxf(height, 0.0f);
    const float area = (one.right - one.left) * (one.bottom - one.top);
    const float other_area = (other.right - other.left) * (other.bottom - other.top);
    return intersection / (area + other_area - intersection);
}

// Sorts the first ``size`` keys of a block of 1024 threads in descending order, one key per thread. ``size`` must be a power
// of two from 32 on. This is a bitonic sort. Threads of one warp exchange keys without a barrier.
__device__ u64 sorted_key(u64 key, int size, u64 (*exchanged)[1024]) {
    const int own = threadIdx.x;
    int turn = 0;  // alternate between two arrays, so that one barrier is enough
    for (int width = 2; width <= size; width *= 2)
        for (int distance = width / 2; distance > 0; distance /= 2) {
            u64 other;
            if (distance < 32) {
                other = __shfl_sync(0xffffffffu, key, (own ^ distance) & 31);
            } else {
                exchanged[turn][own] = key;
                __syncthreads();
                other = exchanged[turn][own ^ distance];
                turn ^= 1;
            }
            const bool first = (own & distance) == 0, descending = (own & width) == 0;
            key = first == descending ? max(key, other) : min(key, other);
        }
    return key;
}

// One block of 1024 threads per frame.
extern "C" __global__ void select_best(const Batch* batch, const OUTPUT_T* outputs, Scratch* scratches) {
    if (!frame_of(batch)) return;
    const OUTPUT_T* output = own(outputs);
    Scratch* scratch = own(scratches);
    __shared__ u64 keys[2][1024];
    __shared__ u32 histogram[256];
    __shared__ u32 shared[4];
    const int count = (int)scratch->count, candidates = min(count, MAX_CANDIDATES);
    const int i = threadIdx.x;
    u64 key = 0;
    if (count <= MAX_CANDIDATES) {
        if (i < count) key = scratch->keys[i];
    } else {
        if (i == 0) shared[3] = 0;
        const u64 threshold = selection_threshold(scratch->keys, count, histogram, shared);
        for (int at = i; at < count; at += blockDim.x)
            if (scratch->keys[at] >= threshold) keys[1][atomicAdd(&shared[3], 1u)] = scratch->keys[at];
        __syncthreads();
        if (i < candidates) key = keys[1][i];
    }
    // Sort only up to the next power of two.
    int size = 32;
    while (size < candidates) size *= 2;
    key = sorted_key(key, size, keys);
    if (i < candidates) {
        const int anchor = (int)(0xffffffffu - (u32)key);
        scratch->best[i] = key;
        scratch->classes[i] = scratch->class_of_anchor[anchor];
        scratch->boxes[i] = box_at(output, anchor);
#if ORIENTED
        scratch->spreads[i] = spread_of(scratch->boxes[i], value_at(output, FIRST_TASK_VALUE, anchor));
#endif
    }
    if (i == 0) scratch->candidates = candidates;
}

// Blocks of 32 x 8 threads. x is a word of 32 later candidates. y and the block index give the earlier candidate.
extern "C" __global__ void overlaps(const Batch* batch, Scratch* scratches) {
    const FrameHeader* frame = frame_of(batch);
    if (!frame) return;
    Scratch* scratch = own(scratches);
    const int candidates = scratch->candidates;
    const int row = blockIdx.x * 8 + threadIdx.y;
    const int word = threadIdx.x;
    if (row >= candidates || word >= MAX_CANDIDATES / 32) return;
    u32 bits = 0;
    const int last = min(word * 32 + 32, candidates);
    if (last > row + 1 || word == row / 32) {
#if ORIENTED
        const Spread* shapes = scratch->spreads;
#else
        const Candidate* shapes = scratch->boxes;
#endif
        const auto own = shapes[row];
        const int class_id = scratch->classes[row];
        const float threshold = frame->iou_threshold;
        for (int other = word * 32; other < last; ++other) {
            if (other == row || (!CLASS_AGNOSTIC && scratch->classes[other] != class_id)) continue;
            if (overlap_of(own, shapes[other]) > threshold) bits |= 1u << (other & 31);
        }
    }
    scratch->overlaps[row][word] = bits;
}

