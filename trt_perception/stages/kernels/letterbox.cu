// SPDX-License-Identifier: Apache-2.0

// Converts the pixels of each supported encoding to the network's input in one pass.
//
// Each thread computes one pixel of the input. sample() in bilinear.cuh, bicubic.cuh or antialiased.cuh
// returns its colour. The kernel normalises the channels and writes them to the three planes.

extern "C" __global__ void letterbox(const Batch* batch, INPUT_T* tensor) {
    const FrameHeader* frame = frame_of(batch);
    if (!frame) return;
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= NET_WIDTH || y >= NET_HEIGHT) return;
    float first = PADDING_0, second = PADDING_1, third = PADDING_2;
    if (in_image(frame, x, y)) {
        const u8* image = (const u8*)frame + frame->pixels;
        const ResizedRgb pixel = sample(image, frame, x - frame->pad_left, y - frame->pad_top);
        // The tensor's channel order: the first channel is red if RGB_ORDER is set, else blue.
        first = (RGB_ORDER ? pixel.r : pixel.b) * GAIN_0 + BIAS_0;
        second = pixel.g * GAIN_1 + BIAS_1;
        third = (RGB_ORDER ? pixel.b : pixel.r) * GAIN_2 + BIAS_2;
    }
    const int plane = NET_WIDTH * NET_HEIGHT;
    INPUT_T* target = tensor + (size_t)blockIdx.z * 3 * plane + y * NET_WIDTH + x;
    store(target, first);
    store(target + plane, second);
    store(target + 2 * plane, third);
}
