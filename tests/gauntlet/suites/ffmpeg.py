"""ffmpeg: pictures made, encoded and decoded, their sums compared."""

from debian import output
from harness import Step, digest

PACKAGES = ["ffmpeg"]
WHAT = "test pictures through x264, x265, VP9, scaling and sound filters; sums of the frames"
PICTURES = "-f lavfi -i testsrc2=size={}:rate=25:duration={}"


def version():
    return output("dpkg-query", "-W", "-f", "${Version}", "ffmpeg")


def steps(tree):
    for name, size, seconds, rest in (
        ("x264", "1280x720", 4, "-c:v libx264 -preset medium -threads 2"),
        ("x265", "640x360", 3, "-c:v libx265 -preset fast -x265-params pools=2:frame-threads=1:log-level=none"),
        ("vp9", "640x360", 3, "-c:v libvpx-vp9 -cpu-used 4 -threads 2"),
        ("scale", "1920x1080", 4, "-vf scale=3840:2160,transpose=1,hqdn3d -c:v rawvideo"),
        ("reverse", "640x360", 8, "-vf reverse -c:v rawvideo"),  # keeps all frames in memory
    ):
        command = f"ffmpeg -nostdin -v error {PICTURES.format(size, seconds)} {rest} -bitexact -f matroska -y out.mkv"
        yield Step(name, f"{command} && ffmpeg -nostdin -v error -i out.mkv -f md5 -", timeout=500, read=digest,
                   quick=name == "reverse")
