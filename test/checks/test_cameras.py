# SPDX-License-Identifier: Apache-2.0
"""Tests of doctor's findings about camera topics. A golden file has each scene's findings."""

from support import golden
from support.findings import text_of
from trt_perception.checks.cameras import CameraReport, CameraScene, camera_findings
from trt_perception.parameters.camera import CameraPlan
from trt_perception.transport.advice import LARGE_MESSAGE_BYTES


def report(topic='/image', **changes):
    """Return the report of a camera without problems, except for the changed facts."""
    facts = {
        'compressed': topic.endswith('/compressed'),
        'reliability': ('reliable',),
        'received': 90,
        'lost': 0,
        'seconds': 3.0,
        'rate_hz': 30.0,
        'message_bytes': 6_220_800,
        'description': '1920x1080 bgr8',
    }
    return CameraReport(topic, **{**facts, **changes})


def report_without_publisher(topic):
    """Return the report of a topic that has only subscribers."""
    return report(topic, reliability=(), received=0)


def plan(name='', topic='', transport='raw', *, reliable=False, enabled=True):
    return CameraPlan(name, topic, transport, 'reliable' if reliable else 'auto', enabled)


def plans(**topics):
    return [plan(name, topic) for name, topic in topics.items()]


STRING = {'/front': '/talker publishes std_msgs/msg/String'}
BEST_EFFORT = report('/a', reliability=('best_effort',))
#: For each scene: the topic reports, the cameras of the detector, and other facts.
SCENES = {
    # Without a detector's cameras.
    'good cameras': ([report(), report('/image/compressed'), report('/b', lost=None)], []),
    'too few images for a rate': ([report(received=2, rate_hz=None)], []),
    'no topic': ([], []),
    'no publisher': ([report_without_publisher('/image')], []),
    'publisher is gone': ([report(reliability=())], []),
    'silent': ([report(received=0)], []),
    'loss of one of a hundred images is green': ([report(lost=1, received=99)], []),
    'loss of two of 92 images is yellow': ([report(lost=2)], []),
    'damaged': ([report(unreadable_reason='it is damaged')], []),
    'two publishers': ([report(reliability=('reliable', 'best_effort'))], []),
    'larger than shared memory': ([report(message_bytes=2**26 + 1)], []),
    'as large as shared memory': ([report(message_bytes=2**26)], []),
    'best effort': ([report(reliability=('best_effort',))], []),
    'best effort without a profile': (
        [report(reliability=('best_effort',), message_bytes=300_000)],
        [],
        {'segment_bytes': 2**19},
    ),
    'small and best effort without a profile': (
        [report(reliability=('best_effort',), message_bytes=90_000)],
        [],
        {'segment_bytes': 2**19},
    ),
    **{
        f'best effort, {message_bytes} bytes, {segment_bytes} of shared memory': (
            [report(reliability=('best_effort',), message_bytes=message_bytes)],
            [],
            {'segment_bytes': segment_bytes},
        )
        for message_bytes in (LARGE_MESSAGE_BYTES, LARGE_MESSAGE_BYTES + 1)
        for segment_bytes in (2**20, 2**20 + 1)
    },
    'cv_bridge': ([report(cv_bridge_encoding='32FC1')], []),
    'only compressed images': ([report('/front/compressed')], []),
    **{
        f'only compressed images, {transport}': (
            [report('/front/compressed')],
            [plan(transport=transport)],
        )
        for transport in ('compressed', 'auto')
    },
    'JPEG by another name': ([report('/cam/jpeg', compressed=True)], []),
    'raw images on a compressed topic': ([report('/a/compressed', compressed=False)], []),
    'only the compressed topic is published': (
        [report_without_publisher('/a'), report('/a/compressed')],
        [],
    ),
    'only the raw topic is published': (
        [report_without_publisher('/a/compressed'), report('/a')],
        [],
    ),
    # One topic of the detector.
    'no topic of the detector': ([], [plan(topic='/image')]),
    'another topic': ([report()], [plan(topic='/front')]),
    'silent topic of the detector': ([report(received=0)], [plan(topic='/image')]),
    **{
        f'detector reads {taken}, {sent.topic} is published': (
            [report_without_publisher(other), sent],
            [plan(topic='/a', transport=taken)],
        )
        for taken in ('raw', 'compressed')
        for other, sent in (
            ('/a', report('/a/compressed')),
            ('/a/compressed', report('/a')),
            ('/a/compressed', report_without_publisher('/a')),
        )
    },
    'only raw images': ([report('/rear')], [plan(topic='/rear', transport='compressed')]),
    'topic that ends in compressed': (
        [report('/r/compressed'), report('/r')],
        [plan(topic='/r/compressed')],
    ),
    'topic that ends in compressed, alone': (
        [report('/r/compressed')],
        [plan(topic='/r/compressed')],
    ),
    **{
        f'JPEG by another name is not suggested for {name!r}': (
            [report('/cam/jpeg', compressed=True)],
            [plan(name, '/image')],
        )
        for name in ('', 'cam')
    },
    **{
        f'compressed type on a raw topic of {name!r}, {transport}{", and JPEGs" * jpegs}': (
            [report('/front', compressed=True), *[report('/front/compressed')] * jpegs],
            [plan(name, '/front', transport)],
        )
        for name in ('front', '')
        for transport in ('raw', 'compressed', 'auto')
        for jpegs in (False, True)
    },
    **{
        f'unused transport is ignored, {transport}, {state}': (
            [
                report(taken, **(sick if state == 'used topic silent' else {})),
                report(other, **(sick if state == 'unused topic silent' else {})),
                *[report_without_publisher('/b')] * (state == 'fine'),
            ],
            [plan(topic='/a', transport=transport)],
        )
        for sick in ({'received': 0},)
        for state in ('fine', 'used topic silent', 'unused topic silent')
        for transport, taken, other in (
            ('raw', '/a', '/a/compressed'),
            ('compressed', '/a/compressed', '/a'),
        )
    },
    'reliability of an unused transport': (
        [report('/a'), report('/a/compressed', reliability=('best_effort',))],
        [plan('front', '/a', reliable=True)],
    ),
    'best effort is sufficient': ([BEST_EFFORT, report('/b')], plans(front='/a', rear='/b')),
    'best effort is insufficient for two cameras': (
        [BEST_EFFORT, report('/b')],
        [plan('front', '/a', reliable=True), plan('rear', '/b', reliable=True)],
    ),
    'best effort is insufficient for one camera': ([BEST_EFFORT], [plan('', '/a', reliable=True)]),
    'best effort and reliable': (
        [report('/a', reliability=('best_effort', 'reliable'), lost=None)],
        [plan('', '/a', reliable=True)],
    ),
    'best effort is insufficient for a switched-off camera': (
        [BEST_EFFORT],
        [plan('front', '/a', reliable=True, enabled=False), plan('rear', '/b')],
    ),
    # Several cameras.
    'order of names': (
        [report(f'/{name}') for name in ('x', 'c', 'b', 'a')],
        plans(front='/b', rear='/c', top='/a'),
    ),
    **{
        f'names that contain each other, {first} first': (
            [report('/front_rear/image_raw'), report('/rear/image_raw')],
            plans(**{name: f'/{name}/image' for name in (first, second)}),
        )
        for first, second in (('rear', 'front_rear'), ('front_rear', 'rear'))
    },
    'no camera of that name': ([report('/front/image_raw')], plans(a='/a/image')),
    'wrong transport of a camera is red': (
        [*map(report, ('/front/compressed', '/rear', '/top', '/top/compressed', '/other'))],
        [
            plan('a', '/front'),
            plan('b', '/rear', 'compressed'),
            plan('c', '/top', 'compressed'),
        ],
    ),
    'transport of a topic of no camera': (
        [report('/front/image'), report('/other/compressed')],
        plans(front='/front/image'),
    ),
    **{
        f'missing {"topic is red" if given else "topic is yellow if it was guessed"}': (
            [
                report('/front/image'),
                report('/rear/image/compressed', received=0),
                report('/other'),
                report('/top/image_raw'),
            ],
            plans(front='/front/image', rear='/rear/image', top='/up/image'),
            {'topics_given': given},
        )
        for given in (True, False)
    },
    'one argument for all cameras': (
        [report('/front/image_raw'), report('/rear/image_raw')],
        plans(front='/image', rear='/image_2'),
    ),
    'no argument for all cameras': (
        [report('/front/image_raw'), report('/rear/image_raw')],
        plans(front='/front/image_raw', rear='/image_2'),
    ),
    'unused topics': (
        [
            report('/front/image'),
            report_without_publisher('/read_only'),
            report('/b_left'),
            report('/a_right/compressed'),
        ],
        plans(front='/front/image', right='/r', left='/l', rear='/b'),
    ),
    **{
        f'another type on the topic of {name!r}, {len(others)} others': (
            others,
            [plan(name, '/front')],
            {'other_types': STRING},
        )
        for name in ('front', '')
        for others in ([], [report('/other')])
    },
    'no topic of several cameras': ([], plans(front='/front/image', rear='/rear/image')),
    'no topic, guessed': ([], plans(front='/front/image'), {'topics_given': False}),
    # Cameras that are switched off.
    **{
        f'off: {off}{", no topic" * (not reports)}': (
            reports,
            [plan(name, f'/{name}', enabled=name not in off) for name in ('rear', 'top')],
        )
        for off in (('rear', 'top'), ('top',))
        for reports in ([report_without_publisher('/rear')], [])
    },
    **{
        f'damaged images of a camera that is {"on are red" if enabled else "off are green"}': (
            [report('/rear', unreadable_reason='it is damaged')],
            [plan('rear', '/rear', enabled=enabled)],
        )
        for enabled in (True, False)
    },
}


def findings_of(reports, cameras, facts=None):
    facts = {'segment_bytes': 2**26, 'profile_fix': 'FIX', **(facts or {})}
    return list(camera_findings(CameraScene(reports, cameras, **facts)))


def test_camera_scenes_give_the_recorded_findings():
    scenes = {name: findings_of(*scene) for name, scene in SCENES.items()}
    golden.check('checks/cameras.txt', text_of(scenes))
