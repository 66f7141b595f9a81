"""doctor's findings of camera topics: a table of scenes, whose findings are in a golden file."""

from support import golden
from support.findings import text_of
from trt_perception.checks.cameras import CameraReport, CameraScene, check_cameras
from trt_perception.parameters.camera import CameraPlan
from trt_perception.transport.advice import LARGE_MESSAGE_BYTES


def heard(topic='/image', **changes):
    """Return the report of a good camera, with some facts changed."""
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


def unpublished(topic):
    """Return the report of a topic that only subscribers have."""
    return heard(topic, reliability=(), received=0)


def plan(name='', topic='', transport='raw', *, reliable=False, enabled=True):
    return CameraPlan(name, topic, transport, 'reliable' if reliable else 'auto', enabled)


def plans(**topics):
    return [plan(name, topic) for name, topic in topics.items()]


STRING = {'/front': '/talker publishes std_msgs/msg/String'}
BEST_EFFORT = heard('/a', reliability=('best_effort',))
#: Name of a scene: topics that doctor heard, cameras of the detector, other facts of the scene.
SCENES = {
    # Any topic will do.
    'good cameras': ([heard(), heard('/image/compressed'), heard('/b', lost=None)], []),
    'too few images for a rate': ([heard(received=2, rate_hz=None)], []),
    'no topic': ([], []),
    'no publisher': ([unpublished('/image')], []),
    'publisher went': ([heard(reliability=())], []),
    'silent': ([heard(received=0)], []),
    'one of a hundred lost': ([heard(lost=1, received=99)], []),
    'two of 92 lost': ([heard(lost=2)], []),
    'damaged': ([heard(fault='it is damaged')], []),
    'two publishers': ([heard(reliability=('reliable', 'best_effort'))], []),
    'larger than shared memory': ([heard(message_bytes=2**26 + 1)], []),
    'as large as shared memory': ([heard(message_bytes=2**26)], []),
    'best effort': ([heard(reliability=('best_effort',))], []),
    'best effort without a profile': (
        [heard(reliability=('best_effort',), message_bytes=300_000)],
        [],
        {'segment_bytes': 2**19},
    ),
    'small and best effort without a profile': (
        [heard(reliability=('best_effort',), message_bytes=90_000)],
        [],
        {'segment_bytes': 2**19},
    ),
    **{
        f'best effort, {message_bytes} bytes, {segment_bytes} of shared memory': (
            [heard(reliability=('best_effort',), message_bytes=message_bytes)],
            [],
            {'segment_bytes': segment_bytes},
        )
        for message_bytes in (LARGE_MESSAGE_BYTES, LARGE_MESSAGE_BYTES + 1)
        for segment_bytes in (2**20, 2**20 + 1)
    },
    'cv_bridge': ([heard(cv_bridge_encoding='32FC1')], []),
    'only compressed images': ([heard('/front/compressed')], []),
    **{
        f'only compressed images, {transport}': (
            [heard('/front/compressed')],
            [plan(transport=transport)],
        )
        for transport in ('compressed', 'auto')
    },
    'JPEG by another name': ([heard('/cam/jpeg', compressed=True)], []),
    'raw images on a compressed topic': ([heard('/a/compressed', compressed=False)], []),
    'sent compressed only': ([unpublished('/a'), heard('/a/compressed')], []),
    'sent raw only': ([unpublished('/a/compressed'), heard('/a')], []),
    # A topic that the detector reads.
    'no topic of the detector': ([], [plan(topic='/image')]),
    'another topic': ([heard()], [plan(topic='/front')]),
    'silent topic of the detector': ([heard(received=0)], [plan(topic='/image')]),
    **{
        f'detector takes {taken}, {sent.topic} is sent': (
            [unpublished(other), sent],
            [plan(topic='/a', transport=taken)],
        )
        for taken in ('raw', 'compressed')
        for other, sent in (
            ('/a', heard('/a/compressed')),
            ('/a/compressed', heard('/a')),
            ('/a/compressed', unpublished('/a')),
        )
    },
    'only raw images': ([heard('/rear')], [plan(topic='/rear', transport='compressed')]),
    'topic that ends in compressed': (
        [heard('/r/compressed'), heard('/r')],
        [plan(topic='/r/compressed')],
    ),
    'topic that ends in compressed, alone': (
        [heard('/r/compressed')],
        [plan(topic='/r/compressed')],
    ),
    **{
        f'JPEG by another name is not offered to {name!r}': (
            [heard('/cam/jpeg', compressed=True)],
            [plan(name, '/image')],
        )
        for name in ('', 'cam')
    },
    **{
        f'compressed type on a raw topic of {name!r}, {transport}{", and JPEGs" * jpegs}': (
            [heard('/front', compressed=True), *[heard('/front/compressed')] * jpegs],
            [plan(name, '/front', transport)],
        )
        for name in ('front', '')
        for transport in ('raw', 'compressed', 'auto')
        for jpegs in (False, True)
    },
    **{
        f'transport that is not taken does not matter, {transport}, {state}': (
            [
                heard(taken, **(sick if state == 'taken one silent' else {})),
                heard(other, **(sick if state == 'other one silent' else {})),
                *[unpublished('/b')] * (state == 'fine'),
            ],
            [plan(topic='/a', transport=transport)],
        )
        for sick in ({'received': 0},)
        for state in ('fine', 'taken one silent', 'other one silent')
        for transport, taken, other in (
            ('raw', '/a', '/a/compressed'),
            ('compressed', '/a/compressed', '/a'),
        )
    },
    'reliability of the transport that is not taken': (
        [heard('/a'), heard('/a/compressed', reliability=('best_effort',))],
        [plan('front', '/a', reliable=True)],
    ),
    'best effort is enough': ([BEST_EFFORT, heard('/b')], plans(front='/a', rear='/b')),
    'best effort is too little': (
        [BEST_EFFORT, heard('/b')],
        [plan('front', '/a', reliable=True), plan('rear', '/b', reliable=True)],
    ),
    'best effort is too little for one camera': ([BEST_EFFORT], [plan('', '/a', reliable=True)]),
    'best effort and reliable': (
        [heard('/a', reliability=('best_effort', 'reliable'), lost=None)],
        [plan('', '/a', reliable=True)],
    ),
    'best effort is too little for a camera that is off': (
        [BEST_EFFORT],
        [plan('front', '/a', reliable=True, enabled=False), plan('rear', '/b')],
    ),
    # Several cameras.
    'order of names': (
        [heard(f'/{name}') for name in ('x', 'c', 'b', 'a')],
        plans(front='/b', rear='/c', top='/a'),
    ),
    **{
        f'names that contain each other, {first} first': (
            [heard('/front_rear/image_raw'), heard('/rear/image_raw')],
            plans(**{name: f'/{name}/image' for name in (first, second)}),
        )
        for first, second in (('rear', 'front_rear'), ('front_rear', 'rear'))
    },
    'no camera of that name': ([heard('/front/image_raw')], plans(a='/a/image')),
    'transports': (
        [*map(heard, ('/front/compressed', '/rear', '/top', '/top/compressed', '/other'))],
        [
            plan('a', '/front'),
            plan('b', '/rear', 'compressed'),
            plan('c', '/top', 'compressed'),
        ],
    ),
    'transport of a topic that nobody reads': (
        [heard('/front/image'), heard('/other/compressed')],
        plans(front='/front/image'),
    ),
    **{
        f'several cameras{", guessed" * (not given)}': (
            [
                heard('/front/image'),
                heard('/rear/image/compressed', received=0),
                heard('/other'),
                heard('/top/image_raw'),
            ],
            plans(front='/front/image', rear='/rear/image', top='/up/image'),
            {'topics_given': given},
        )
        for given in (True, False)
    },
    'one argument for all cameras': (
        [heard('/front/image_raw'), heard('/rear/image_raw')],
        plans(front='/image', rear='/image_2'),
    ),
    'no argument for all cameras': (
        [heard('/front/image_raw'), heard('/rear/image_raw')],
        plans(front='/front/image_raw', rear='/image_2'),
    ),
    'topics that are free': (
        [
            heard('/front/image'),
            unpublished('/read_only'),
            heard('/b_left'),
            heard('/a_right/compressed'),
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
        for others in ([], [heard('/other')])
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
        for reports in ([unpublished('/rear')], [])
    },
    **{
        f'damaged, {"on" if enabled else "off"}': (
            [heard('/rear', fault='it is damaged')],
            [plan('rear', '/rear', enabled=enabled)],
        )
        for enabled in (True, False)
    },
}


def findings_of(reports, cameras, facts=None):
    facts = {'segment_bytes': 2**26, 'profile_fix': 'CURE', **(facts or {})}
    return list(check_cameras(CameraScene(reports, cameras, **facts)))


def test_findings_of_all_scenes():
    scenes = {name: findings_of(*scene) for name, scene in SCENES.items()}
    golden.check('checks/cameras.txt', text_of(scenes))


def test_images_that_the_detector_misses_are_red():
    levels = {
        scene: {finding.name: finding.level for finding in findings_of(*SCENES[scene])}
        for scene in ('two of 92 lost', 'damaged, on', 'transports', 'several cameras, guessed')
    }
    assert levels == {
        'two of 92 lost': {'/image': 'yellow'},
        'damaged, on': {'rear: /rear': 'red'},
        'transports': {
            'a: /front/compressed': 'red',
            'b: /rear': 'red',
            'c: /top': 'green',
            'c: /top/compressed': 'green',
            '/other': 'green',
        },
        'several cameras, guessed': {
            'top: /up/image': 'yellow',
            'front: /front/image': 'green',
            'rear: /rear/image/compressed': 'red',
            '/other': 'green',
            '/top/image_raw': 'green',
        },
    }
