// SPDX-License-Identifier: Apache-2.0

// Writes the input pixel_mask: 1 at pixels of the image, 0 in its padding. A mask may be smaller than the network's input;
// then each of its pixels stands for the first network pixel that it covers. Must equal image_mask in
// trt_perception/model/input_layout.py.

__device__ __forceinline__ void store(long long* target, float value) { *target = (long long)value; }
__device__ __forceinline__ void store(int* target, float value) { *target = (int)value; }
__device__ __forceinline__ void store(u8* target, float value) { *target = (u8)value; }

extern "C" __global__ void pixel_mask(const Batch* batch, MASK_T* mask) {
    const FrameHeader* frame = frame_of(batch);
    if (!frame) return;
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= MASK_WIDTH || y >= MASK_HEIGHT) return;
    const bool inside = in_image(frame, (int)((long long)x * NET_WIDTH / MASK_WIDTH), (int)((long long)y * NET_HEIGHT / MASK_HEIGHT));
    store(mask + ((size_t)blockIdx.z * MASK_HEIGHT + y) * MASK_WIDTH + x, inside ? 1.0f : 0.0f);
}
