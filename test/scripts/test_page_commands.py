# SPDX-License-Identifier: Apache-2.0
"""Run the commands of README.md and docs/tutorial.md, or say why a command is not run."""

import os
import re

import pytest

from support.docs_pages import ROOT
from support.programs import Program
from trt_perception.transport.advice import PROFILE_VARIABLES

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.ros

TUTORIAL = (ROOT / 'docs' / 'tutorial.md').read_text(encoding='utf-8')
README = (ROOT / 'README.md').read_text(encoding='utf-8')
#: What tests or .ci/run run in another place, by the beginning of the command.
RUN_ELSEWHERE = {
    'scripts/demo': 'test/scripts/test_demo.py: test_shipped_digits_model_is_accurate',
    'scripts/demo --task segment': 'test/scripts/test_demo.py: test_masks_arrive_with_their_boxes',
    'scripts/test': '.ci/run: scripts/test',
    'python3 -m colcon build ': 'scripts/lib/environment.sh: env_colcon build',
    'ros2 run trt_perception build_engine ': (
        'test/repository/test_docs_building.py: test_commands_of_the_page_are_accepted'
    ),
    'ros2 launch trt_perception detect.launch.py ': (
        'test/repository/test_docs.py: test_launch_commands_have_known_arguments'
    ),
    'ros2 launch trt_perception demo.launch.py': (
        'test/ros/test_launch.py: test_demo_of_two_cameras_detects_digits'
    ),
}
#: Why other commands are not run, by the beginning of the command.
NOT_RUN = {
    'sudo ': 'needs root, apt and the network',
    'rosdep ': 'needs apt',
    'source /opt/ros/jazzy/setup.bash': 'needs an installed ROS 2',
    'source ': 'follows the workspace of the lines before',
    'cd ~/trt_perception': 'the test below starts each command in the checkout',
    'cd ~/ros2_ws': 'the workspace of an installed ROS 2',
    'python3 -m venv ': 'the workspace of an installed ROS 2',
    'python3 -m pip install ': 'needs the network, and for CUDA gigabytes',
    'profile=$(ros2 ': 'needs an installed ROS 2',
    'export FASTRTPS_DEFAULT_PROFILES_FILE=$profile ': 'follows the profile of the line before',
    'env -u ': 'opens a shell for the lines after it',
    'ros2 topic ': 'PyPI has no command ros2; the test below reads the topic',
    'ros2 run trt_perception doctor ': 'PyPI has no command ros2; the test below runs doctor',
    'scripts/run examples/webcam/webcam.py': 'needs a camera',
}


def commands(page):
    """Return the commands of a page, each in one line, without comments."""
    blocks = re.findall(r'^ *```bash\n(.*?)^ *```', page, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in re.sub(r'\\\n', ' ', block).strip().splitlines()]
    return [' '.join(re.sub(r'\s#.*', '', line).split()) for line in lines]


def is_run_here(command):
    return not command.startswith((*RUN_ELSEWHERE, *NOT_RUN))


def test_each_reason_and_place_is_needed_and_exists():
    listed = [*commands(README), *commands(TUTORIAL)]
    for start in (*RUN_ELSEWHERE, *NOT_RUN):
        assert any(command.startswith(start) for command in listed), start
    for place in RUN_ELSEWHERE.values():
        path, _, name = place.partition(': ')
        assert name in (ROOT / path).read_text(encoding='utf-8')


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a command of a page in a shell of the checkout."""
    started = []
    environment = {**dict.fromkeys(PROFILE_VARIABLES), 'HOME': str(tmp_path)}

    def start(command):
        is_program = command.startswith('scripts/')
        line = f'cd "$0" && {"exec " if is_program else ""}{command}'
        started.append(Program(['bash', '-c', line, ROOT], environment))
        return started[-1]

    yield start
    for program in reversed(started):
        if program.alive:
            program.close()


#: Longest run of another command in seconds. The detector runs at the same time.
LONGEST_S = 280
#: Commands that run until they are ended, by their beginning, with a line of their output.
LASTING = {
    'scripts/run detector_node ': r'active',
    'scripts/run replay_images ': r'publishing',
    'scripts/run examples/subscriber/subscriber.py': r' objects$',
}


@pytest.mark.skipif(
    'TRT_PERCEPTION_IN_TEST' not in os.environ,
    reason='scripts/run would set up an environment; only scripts/test has prepared one',
)
@pytest.mark.timeout(900)  # starts ten programs
@pytest.mark.parametrize('page', [README, TUTORIAL], ids=['README', 'tutorial'])
def test_commands_of_the_page_work_one_after_the_other(page, start, tmp_path):
    for values in re.findall(r'^```yaml\n(.*?)^```', page, re.DOTALL | re.MULTILINE):
        (tmp_path / 'my.yaml').write_text(values, encoding='utf-8')
    lasting = {}
    for command in filter(is_run_here, commands(page)):
        words = next((words for words in LASTING if command.startswith(words)), None)
        if words in lasting:
            lasting[words].close()  # the page says: end it with Ctrl-C
        program = start(command)
        if words:
            program.wait_for_line(LASTING[words])
            lasting[words] = program
        else:
            assert program.wait(LONGEST_S) == 0, f'{command}\n{program.output}'
    assert lasting.keys() == LASTING.keys()
    assert all(program.alive for program in lasting.values())
