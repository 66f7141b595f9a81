# SPDX-License-Identifier: Apache-2.0
"""Run the steps of docker/Dockerfile and docker/compose.yaml that need neither Docker nor apt.

The steps run in a new folder that gets only the files that the image gets. ROS 2 comes from the
environment of this checkout. The last lines list all instructions, and whether they ran.

Exit codes: 0 all steps passed, 1 a step failed, 2 wrong usage.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
# The checkout's sources must not hide the installed package.
sys.path[:] = [entry for entry in sys.path if Path(entry or '.').resolve() != ROOT]

from trt_perception.process.option_parser import OptionParser  # noqa: E402

DOCKER = ROOT / 'docker'
WAIT_S = 60
EXAMPLES = """\
examples:
  scripts/container_steps          run the steps, in a minute or two
  scripts/container_steps --list   only list the instructions of the Dockerfile
"""
#: A pattern of an instruction and the function that runs it here; a text says why none does.
STEPS = (
    (r'FROM ', 'needs Docker'),
    (r'(SHELL|WORKDIR|ENV|USER|ENTRYPOINT|CMD) ?', 'setting of the image'),
    (r'RUN apt-get', 'needs apt and the ROS repository'),
    (r'RUN python3 -m venv', 'install_packages'),
    (r'RUN python3 -m pip .*container-tensorrt', "needs NVIDIA's package index"),
    (r'RUN \. .*colcon build', 'build_package'),
    (r'RUN install --directory', 'needs the user of the image'),
    (r'COPY ', 'copy_files'),
)


def instructions(text):
    """Return the instructions of a Dockerfile, each in one line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith('#')]
    joined = re.sub(r'\\\n\s*', '', '\n'.join(lines))
    return [line for line in joined.splitlines() if line]


def step_of(instruction):
    """Return the name of the function that runs an instruction, or why it does not run here."""
    for pattern, step in STEPS:
        if re.match(pattern, instruction):
            return step
    raise SystemExit(f'no step for the instruction {instruction!r}: add it to STEPS')


def context_files(rules):
    """Return the files that Docker gets with these rules of a .dockerignore file."""
    tracked = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split('\0')  # fmt: skip
    wanted = [rule[1:] for rule in rules if rule.startswith('!')]
    return [
        name
        for name in tracked
        if name
        and any(name.startswith(f'{rule}/') or fnmatch.fnmatchcase(name, rule) for rule in wanted)
    ]


class Image:
    """A folder that stands for the file system of the image.

    Attributes:
        workspace: the folder that is /ros2_ws in the image.
        context: the folder with the files that Docker gets.
    """

    def __init__(self, folder):
        self.workspace, self.context = folder / 'ros2_ws', folder / 'context'
        self.prefix = folder / 'ros'
        for path in (self.workspace, self.context, self.prefix):
            path.mkdir()
        (self.prefix / 'setup.bash').write_text('# ROS 2 comes from the checkout\n')
        rules = (DOCKER / 'Dockerfile.dockerignore').read_text().splitlines()
        for name in context_files([rule for rule in rules if not rule.startswith('#')]):
            target = self.context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)

    def copy_files(self, instruction):
        """Copy the files of a COPY instruction."""
        *sources, target = [word for word in instruction.split()[1:] if word[:2] != '--']
        place = self.workspace / target.lstrip('/')
        for name in sources:
            source = self.context / name
            if source.is_dir():
                shutil.copytree(source, place, dirs_exist_ok=True)
            else:
                into = place / source.name if target.endswith('/') else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, into)

    def install_packages(self, instruction):
        """Make the virtual environment, and install the pinned packages into it."""
        python = 'python3.12'  # as in the image
        try:  # a shim of pyenv may have the name without the interpreter
            subprocess.run([python, '--version'], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            python = sys.executable
        environment = self.workspace / '.venv'
        subprocess.run([python, '-m', 'venv', environment], check=True)
        python = environment / 'bin' / 'python'
        pip = [python, '-m', 'pip', '--disable-pip-version-check', '--quiet']
        required = self.workspace / 'requirements' / 'container.txt'
        subprocess.run([*pip, 'install', '--no-cache-dir', '--requirement', required], check=True)
        subprocess.run([*pip, 'check'], check=True)
        code = 'import numpy, onnxruntime, simplejpeg; print(numpy.__version__)'
        subprocess.run([python, '-c', code], check=True)

    def build_package(self, instruction):
        """Build the package as the image does."""
        command = [sys.executable, '-m', 'colcon', 'build', '--packages-select', 'trt_perception']
        subprocess.run(command, cwd=self.workspace, check=True)

    def start(self, service):
        """Start the command of a service of compose.yaml through the entrypoint."""
        words = [str(word) for word in service['command']]
        if words[:3] == ['ros2', 'run', 'trt_perception']:  # PyPI has no ros2
            executables = '/ros2_ws/install/trt_perception/lib/trt_perception'
            words = [f'{executables}/{words[3]}', *words[4:]]
        words = [self._here(word) for word in words]
        settings = service.get('environment', {})
        environment = {
            **os.environ,
            **{name: self._here(value) for name, value in settings.items() if '$' not in value},
            'ROS_PREFIX': str(self.prefix),
            'WORKSPACE': str(self.workspace),
        }
        entrypoint = self.workspace / 'usr/local/bin/trt_perception_entrypoint'
        return subprocess.Popen([entrypoint, *words], env=environment)

    def _here(self, word):
        word = re.sub(r'\$\{\w+:-([^}]*)\}', r'\1', word)
        word = word.replace('/ros2_ws/', f'{self.workspace}/')
        return word.replace(':=/models/', f':={ROOT / "models"}/')


def check_detections(image):
    """Start camera and detector as the compose file does. Return whether detections arrive."""
    import rclpy
    from vision_msgs.msg import Detection2DArray

    services = yaml.safe_load((DOCKER / 'compose.yaml').read_text())['services']
    received = []
    rclpy.init()
    node = rclpy.create_node('container_steps')
    node.create_subscription(Detection2DArray, 'detections', received.append, 10)
    programs = [image.start(services[name]) for name in ('camera', 'detector')]
    end = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < end and not any(message.detections for message in received):
            rclpy.spin_once(node, timeout_sec=0.5)
            if any(program.poll() is not None for program in programs):
                break
    finally:
        for program in programs:
            program.send_signal(signal.SIGTERM)
        codes = [program.wait(WAIT_S) for program in programs]
        node.destroy_node()
        rclpy.shutdown()
    found = sum(len(message.detections) for message in received)
    print(f'received {len(received)} messages with {found} detections; exit codes {codes}')
    return found > 0


def main():
    parser = OptionParser(
        'scripts/container_steps',
        'Run the steps of docker/Dockerfile and docker/compose.yaml that need neither Docker nor '
        'apt, in a clean folder.',
        EXAMPLES,
    )
    parser.add_argument('--list', action='store_true', help='list the instructions; run none')
    options = parser.parse_args()
    steps = [(line, step_of(line)) for line in instructions((DOCKER / 'Dockerfile').read_text())]
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        if not options.list:
            image = Image(Path(folder))
            for line, step in steps:
                if hasattr(image, step):
                    print(f'--- {line[:96]}', flush=True)
                    getattr(image, step)(line)
            print('--- compose.yaml: camera and detector', flush=True)
            passed = check_detections(image)
    for line, step in steps:
        print(f'{"runs here" if hasattr(Image, step) else step:34}{line[:90]}')
    return 0 if passed else 1


if __name__ == '__main__':
    sys.exit(main())
