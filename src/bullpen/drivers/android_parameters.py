"""The parameters of ``android.jumpstarter.dev``, and the files and command lines made from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bullpen.api.fields import Struct, about
from bullpen.drivers.adb_protocol import NO_DISCOVERY
from bullpen.drivers.program_parameters import ARGUMENTS_MAX, FILES_MAX, PATHS_MAX
from bullpen.drivers.target_files import File
from bullpen.kit import quantities
from bullpen.kit.quantities import SIZE_PATTERN

BOOT_SECONDS_MAX = 3600

AVD = "target"
"""Name of the virtual device. An instance has one."""

UNLOCK = 'rm -rf "$ANDROID_AVD_HOME"/*.avd/*.lock; exec "$@"'
"""An emulator that was killed leaves its locks, and the next one does not start."""

_CONTROLLED = (
    "-avd", "-port", "-ports", "-sysdir", "-datadir", "-grpc", "-grpc-use-token", "-adb-path",
    "-http-proxy", "-tcpdump", "-qemu", "-shared-net-id",
)  # fmt: skip
"""Options that decide about ports, files of the host, and what QEMU itself is told."""


class AndroidAccel(StrEnum):
    KVM = "kvm"
    NONE = "none"


class AndroidAbi(StrEnum):
    X86_64 = "x86_64"
    X86 = "x86"
    ARM64 = "arm64-v8a"
    ARM = "armeabi-v7a"


ARCHITECTURES = {
    AndroidAbi.X86_64: "x86_64",
    AndroidAbi.X86: "x86",
    AndroidAbi.ARM64: "arm64",
    AndroidAbi.ARM: "arm",
}
"""The emulator's name of the processor for each kind of system image."""

HOSTS = {
    AndroidAbi.X86_64: "x86_64",
    AndroidAbi.X86: "x86_64",
    AndroidAbi.ARM64: "aarch64",
    AndroidAbi.ARM: "aarch64",
}
"""The architecture of a host on which KVM runs each kind of system image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidScreen(Struct):
    """The display of the device."""

    width: int = field(
        default=1080, metadata=about("Width.", minimum=160, maximum=7680, defaulted=True)
    )
    height: int = field(
        default=1920, metadata=about("Height.", minimum=160, maximum=7680, defaulted=True)
    )
    density: int = field(
        default=420, metadata=about("Dots per inch.", minimum=72, maximum=960, defaulted=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidResources(Struct):
    """What one device may use of its host."""

    cpu: int = field(
        default=2, metadata=about("CPUs of the device.", minimum=1, maximum=64, defaulted=True)
    )
    memory: int | str = field(
        default="2Gi",
        metadata=about("Memory of the device.", pattern=SIZE_PATTERN, defaulted=True),
    )
    storage: int | str = field(
        default="6Gi",
        metadata=about(
            "Size of the device's data partition.", pattern=SIZE_PATTERN, defaulted=True
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidParameters(Struct):
    """Parameters of targets that the Android emulator runs."""

    system_image: str = field(
        metadata=about(
            "Directory of the system image: absolute, or in the SDK, such as"
            " system-images/android-34/google_apis/x86_64.",
            required=True,
            pattern=r"^[A-Za-z0-9._/+-]+$",
        )
    )
    sdk: str = field(
        default="/opt/android-sdk",
        metadata=about(
            "Directory of the Android SDK on the host.",
            pattern=r"^/[A-Za-z0-9._/+-]+$",
            defaulted=True,
        ),
    )
    emulator: str = field(
        default="",
        metadata=about(
            "The emulator's program, if it is not emulator/emulator in the SDK.",
            pattern=r"^/[^{}]+$",
        ),
    )
    abi: AndroidAbi = field(
        default=AndroidAbi.X86_64,
        metadata=about("Kind of the system image.", defaulted=True),
    )
    api_level: int = field(
        default=0,
        metadata=about("API level of the system image.", minimum=0, maximum=1000, defaulted=True),
    )
    accel: AndroidAccel = field(
        default=AndroidAccel.KVM,
        metadata=about(
            "kvm, or none: without KVM a device takes tens of minutes to boot.", defaulted=True
        ),
    )
    gpu: str = field(
        default="swiftshader_indirect",
        metadata=about("How graphics are rendered.", pattern="^[a-z_]+$", defaulted=True),
    )
    screen: AndroidScreen = field(
        default=AndroidScreen(), metadata=about("The display of the device.")
    )
    hardware: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(
            "Other settings of the device (config.ini), such as hw.gps: 'no'.",
            max_properties=FILES_MAX,
        ),
    )
    extra_arguments: tuple[str, ...] = field(
        default=(),
        metadata=about("More arguments of the emulator.", max_items=ARGUMENTS_MAX),
    )
    apks: tuple[File, ...] = field(
        default=(),
        metadata=about("Packages that are installed after booting.", max_items=FILES_MAX),
    )
    readable: tuple[str, ...] = field(
        default=(),
        metadata=about("Other paths that the emulator reads.", max_items=PATHS_MAX),
    )
    ready_seconds: int = field(
        default=600,
        metadata=about(
            "How long switching on may take, until Android has booted and every package is"
            " installed.",
            minimum=1,
            maximum=BOOT_SECONDS_MAX,
            defaulted=True,
        ),
    )
    resources: AndroidResources = field(
        default=AndroidResources(), metadata=about("CPUs, memory and sizes.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidPorts:
    """Ports on the loopback interface of one instance."""

    console: int
    server: int
    """Of the adb server."""

    @property
    def device(self) -> int:
        """Of the device's adb; the emulator takes the one after its console's."""
        return self.console + 1

    @property
    def serial(self) -> str:
        return f"emulator-{self.console}"


def problems(wanted: AndroidParameters) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What a schema cannot express: the path in the parameters, and what is wrong there."""
    for index, argument in enumerate(wanted.extra_arguments):
        if argument in _CONTROLLED:
            yield ("extraArguments", index), f"{argument} is decided for each instance"
    for name, value in sorted(wanted.hardware.items()):
        if not re.fullmatch(r"[A-Za-z0-9._]{1,100}", name):
            yield ("hardware", name), "is not the name of a setting"
        elif name in device_settings(wanted):
            yield ("hardware", name), "is decided by another parameter"
        if not value.isprintable() or len(value) > 200:
            yield ("hardware", name), "the value must be one line of at most 200 characters"
    for index, place in enumerate(wanted.readable):
        if not place.startswith("/"):
            yield ("readable", index), f"{place!r} is not an absolute path"


def program(wanted: AndroidParameters) -> str:
    return wanted.emulator or f"{wanted.sdk}/emulator/emulator"


def image_directory(wanted: AndroidParameters) -> str:
    image = wanted.system_image
    return image if image.startswith("/") else f"{wanted.sdk}/{image}"


def device_settings(wanted: AndroidParameters) -> dict[str, str]:
    """The settings in ``config.ini`` that other parameters decide."""
    resources, screen = wanted.resources, wanted.screen
    return {
        "AvdId": AVD,
        "PlayStore.enabled": "no",
        "abi.type": wanted.abi,
        "avd.ini.encoding": "UTF-8",
        "disk.dataPartition.size": str(quantities.parse(resources.storage).whole()),
        "fastboot.forceColdBoot": "yes",
        "hw.cpu.arch": ARCHITECTURES[wanted.abi],
        "hw.cpu.ncore": str(resources.cpu),
        "hw.gpu.enabled": "yes",
        "hw.gpu.mode": wanted.gpu,
        "hw.keyboard": "yes",
        "hw.lcd.density": str(screen.density),
        "hw.lcd.height": str(screen.height),
        "hw.lcd.width": str(screen.width),
        "hw.ramSize": str(_mebibytes(wanted)),
        "image.sysdir.1": f"{image_directory(wanted)}/",
    }


def avd_files(wanted: AndroidParameters, directory: str) -> dict[str, str]:
    """The two files that make a virtual device, by their paths."""
    place = f"{_devices(directory)}/{AVD}.avd"
    head = {"avd.ini.encoding": "UTF-8", "path": place}
    if wanted.api_level:
        head["target"] = f"android-{wanted.api_level}"
    return {
        f"{_devices(directory)}/{AVD}.ini": _ini(head),
        f"{place}/config.ini": _ini({**device_settings(wanted), **wanted.hardware}),
    }


def environment(
    wanted: AndroidParameters, *, directory: str, ports: AndroidPorts
) -> dict[str, str]:
    """Variables for the emulator and the adb server, so that they share nothing with others."""
    return {
        "HOME": directory,
        "TMPDIR": directory,
        "ANDROID_USER_HOME": f"{directory}/.android",
        "ANDROID_EMULATOR_HOME": f"{directory}/.android",
        "ANDROID_AVD_HOME": _devices(directory),
        "ANDROID_SDK_ROOT": wanted.sdk,
        "ANDROID_HOME": wanted.sdk,
        "ANDROID_ADB_SERVER_PORT": str(ports.server),
        **NO_DISCOVERY,
    }


def emulator_command(
    wanted: AndroidParameters, *, directory: str, ports: AndroidPorts
) -> tuple[str, ...]:
    values = environment(wanted, directory=directory, ports=ports)
    return (
        *("env", "-C", directory),
        *(f"{name}={value}" for name, value in sorted(values.items())),
        *("sh", "-c", UNLOCK, "sh", program(wanted), "-avd", AVD, "-port", str(ports.console)),
        *("-no-window", "-no-audio", "-no-boot-anim", "-no-snapshot", "-skip-adb-auth"),
        *("-gpu", wanted.gpu, "-accel", "on" if wanted.accel is AndroidAccel.KVM else "off"),
        *("-memory", str(_mebibytes(wanted)), "-cores", str(wanted.resources.cpu)),
        *wanted.extra_arguments,
    )


def _devices(directory: str) -> str:
    return f"{directory}/avd"


def _mebibytes(wanted: AndroidParameters) -> int:
    return quantities.parse(wanted.resources.memory).whole() >> 20


def _ini(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(values.items()))
