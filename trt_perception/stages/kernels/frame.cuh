// SPDX-License-Identifier: Apache-2.0

// The header of a frame, the table of a batch, and conversions between float and tensor values.
// FrameHeader and Batch have the layouts of trt_perception/stages/frame_header.py; tests compare them.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct FrameHeader {
    int width, height, step, format;             // the camera's image; format is a FORMAT_ constant
    int big_endian, resized_width, resized_height, pad_left;
    int pad_top, filter_classes;
    long long pixels;                            // bytes from the start of this header to the first pixel
    float to_source_x, to_source_y;              // source pixels per resized pixel
    double scale_x, scale_y;                     // the same ratios as OpenCV's resize computes them
    float FRAME_PARAMETERS;                      // each field of FrameParameters in trt_perception/model/thresholds.py
    u32 class_bits[CLASS_WORDS];                 // classes to keep if filter_classes is set
};

// Read on the device, so that neither the number nor the addresses of the frames need a new CUDA graph.
struct Batch {
    u8 count;                                    // number of frames, at most the engine's batch, for which kernels are launched
    u8 unused[7];
    const FrameHeader* frames[MAX_BATCH];
};

// The block's frame: all blocks with the same z work on one frame. Null without a frame; the whole block then returns.
__device__ __forceinline__ const FrameHeader* frame_of(const Batch* batch) {
    return blockIdx.z < batch->count ? batch->frames[blockIdx.z] : 0;
}

// Whether a pixel of the network's input belongs to the image, not to its padding.
__device__ __forceinline__ bool in_image(const FrameHeader* frame, int x, int y) {
    x -= frame->pad_left;
    y -= frame->pad_top;
    return x >= 0 && x < frame->resized_width && y >= 0 && y < frame->resized_height;
}

// Conversions without cuda_fp16.h, because the toolkit's headers may be missing at run time.
__device__ __forceinline__ float float_from(float value) { return value; }

struct Half { u16 bits; };
struct BFloat { u16 bits; };

__device__ __forceinline__ float float_from(Half value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
}

__device__ __forceinline__ float float_from(BFloat value) {
    return __uint_as_float((u32)value.bits << 16);
}

__device__ __forceinline__ void store(float* target, float value) { *target = value; }

__device__ __forceinline__ void store(Half* target, float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    target->bits = bits;
}

__device__ __forceinline__ void store(BFloat* target, float value) {
    // Round to nearest even. NaN is not handled, because preprocessed pixels are finite.
    u32 bits = __float_as_uint(value);
    target->bits = (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
