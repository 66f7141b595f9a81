"""Measure time and peak memory of calibrating a YOLO11n-sized model at 640 x 640.

. scripts/env
python scripts/benchmarks/calibration_memory.py scenes/calibration --counts 20 300
"""

import argparse
import multiprocessing
import resource

import reference_network

from trt_perception.building.calibration.images import select_images
from trt_perception.building.precision.quantise import quantise
from trt_perception.model.preprocessing import Preprocessing


def measure(source, count, method, queue):
    """Quantise once, in a process of its own, and report what it needed."""
    model = reference_network.build_network(half=False, size_wh=(640, 640), batch=1)[0]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    images = select_images(source, count)
    report = quantise(model, Preprocessing(input_size=(640, 640)), images, method=method).report
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue.put((len(images.paths), report.seconds, before / 1024, peak / 1024))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('images')
    parser.add_argument('--counts', type=int, nargs='+', default=[20, 300])
    parser.add_argument('--method', default='entropy')
    arguments = parser.parse_args()
    context = multiprocessing.get_context('spawn')
    print('| images | seconds | MiB before | MiB at most |\n|---|---|---|---|')
    for count in arguments.counts:
        queue = context.Queue()
        process = context.Process(
            target=measure, args=(arguments.images, count, arguments.method, queue)
        )
        process.start()
        process.join()
        used, seconds, before, peak = queue.get(timeout=5)
        print(f'| {used} | {seconds:.0f} | {before:.0f} | {peak:.0f} |')


if __name__ == '__main__':
    main()
