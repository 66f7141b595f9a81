// Converts the pixels of each supported encoding to the network's input in one pass.
//
// Each thread computes one pixel of the input. sample() in bilinear.cuh or antialiased.cuh returns the colour as RGB
// bytes. The kernel normalises them and writes them to the three planes.

extern "C" __global__ void letterbox(const Batch* batch, INPUT_T* tensor) {
    const FrameHeader* frame = frame_of(batch);
    if (!frame) return;
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= NET_WIDTH || y >= NET_HEIGHT) return;
    const int inside_x = x - frame->pad_left;
    const int inside_y = y - frame->pad_top;
    const bool inside = inside_x >= 0 && inside_x < frame->resized_width && inside_y >= 0 && inside_y < frame->resized_height;
    const u8* image = (const u8*)frame + frame->pixels;
    const Rgb pixel = inside ? sample(image, frame, inside_x, inside_y) : grey(PAD_VALUE);
    const int plane = NET_WIDTH * NET_HEIGHT;
    INPUT_T* target = tensor + (size_t)blockIdx.z * 3 * plane + y * NET_WIDTH + x;
    // The tensor's channel order: the first channel is red if RGB_ORDER is set, else blue.
    store(target, (RGB_ORDER ? pixel.r : pixel.b) * GAIN_0 + BIAS_0);
    store(target + plane, pixel.g * GAIN_1 + BIAS_1);
    store(target + 2 * plane, (RGB_ORDER ? pixel.b : pixel.r) * GAIN_2 + BIAS_2);
}
