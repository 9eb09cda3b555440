"""The processor of x86 and Arm machines, from trees of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.core.probe import parse_size
from paceline.machine import container
from paceline.machine.cpu import boost, describe_cpu, describe_memory

Tree = Callable[[dict[str, str]], Path]

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R)  Platinum 8480C
cpu MHz\t\t: 2000.000
flags\t\t: fpu sse4_2 avx2 avx512f amx_bf16 amx_tile hypervisor secret_flag

processor\t: 1
model name\t: Intel(R) Xeon(R)  Platinum 8480C
cpu MHz\t\t: 3000.000
flags\t\t: fpu
"""
CPU = "sys/devices/system/cpu"


def topology(sockets: int, cores: int, threads: int) -> dict[str, str]:
    files = {}
    for socket in range(sockets):
        for core in range(cores):
            siblings = [socket * cores + core + thread * sockets * cores for thread in range(threads)]
            for cpu in siblings:
                files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = str(socket)
                files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = ",".join(map(str, siblings))
    return files


def test_x86(tree: Tree) -> None:
    root = tree(
        {
            "proc/cpuinfo": X86,
            f"{CPU}/online": "0-7",
            **topology(2, 2, 2),
            f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave\n",
            f"{CPU}/cpu1/cpufreq/cpuinfo_max_freq": "3800000",
            f"{CPU}/intel_pstate/no_turbo": "0",
            f"{CPU}/cpu1/cache/index0/level": "1",
            f"{CPU}/cpu1/cache/index0/type": "Data",
            f"{CPU}/cpu1/cache/index0/size": "48K",
            f"{CPU}/cpu1/cache/index0/shared_cpu_list": "1,5",
            "sys/devices/system/node/node0/cpulist": "0-3",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       1024 kB\n",
        }
    )
    cpu = describe_cpu(root, affinity={1, 2, 3})
    assert cpu.model == "Intel(R) Xeon(R) Platinum 8480C"
    assert (cpu.sockets, cpu.physical_cores, cpu.logical_cores, cpu.affinity) == (2, 4, 8, 3)
    assert cpu.flags == ["amx_bf16", "amx_tile", "avx2", "avx512f", "hypervisor", "sse4_2"]
    assert (cpu.governor, cpu.boost, cpu.max_frequency_mhz) == ("powersave", True, 3800.0)
    assert cpu.frequency_mhz == 2500.0
    assert (cpu.caches[0].size, cpu.caches[0].shared_by) == (48 * 1024, 2)
    assert cpu.numa_nodes[0].memory == 1024 * 1024
    assert cpu.usable == 3.0


def test_arm_names_come_from_numbers(tree: Tree) -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm fphp\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    cpu = describe_cpu(tree({"proc/cpuinfo": text}), affinity={0})
    assert cpu.model == "Neoverse-V2"
    assert cpu.flags == ["asimd", "bf16", "fphp", "i8mm", "sve"]
    unknown = describe_cpu(tree({"proc/cpuinfo": text.replace("0xd4f", "0xfff")}), affinity={0})
    assert unknown.model == "Arm implementer 0x41 part 0xfff"


def test_nothing_known_is_none(tree: Tree) -> None:
    cpu = describe_cpu(tree({}), affinity={0})
    assert (cpu.model, cpu.sockets, cpu.frequency_mhz, cpu.governor, cpu.boost) == (None,) * 5
    memory = describe_memory(tree({}))
    assert (memory.total, memory.swap_used, memory.limit) == (None,) * 3


def test_a_garbled_file_spoils_only_its_own_field(tree: Tree) -> None:
    root = tree({"proc/cpuinfo": "model name: X\nCPU part: zz\n", f"{CPU}/online": "0-x"})
    cpu = describe_cpu(root, affinity={0})
    assert (cpu.model, cpu.logical_cores) == ("X", None)


def test_boost_of_amd(tree: Tree) -> None:
    assert boost(tree({f"{CPU}/cpufreq/boost": "0"})) is False


def test_the_tightest_quota_of_version_2_counts(tree: Tree) -> None:
    root = tree(
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
            "sys/fs/cgroup/outer/inner/cpu.stat": "usage_usec 5\nthrottled_usec 2500000\n",
            "sys/fs/cgroup/outer/inner/memory.max": "1073741824",
            "sys/fs/cgroup/outer/inner/memory.current": "536870912",
            "sys/fs/cgroup/outer/inner/memory.stat": "anon 1\ninactive_file 36870912\n",
            "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n",
        }
    )
    cpu = describe_cpu(root, affinity={0, 1, 2, 3})
    assert (cpu.affinity, cpu.quota, cpu.usable) == (4, 1.5, 1.5)
    assert container.cpu_stopped(root) == 2.5
    memory = describe_memory(root)
    assert (memory.total, memory.limit, memory.limit_used) == (8 * 1024**3, 1024**3, 500_000_000)
    assert memory.swap_used == 60 * 1024


def test_version_1_seen_from_inside_a_container(tree: Tree) -> None:
    root = tree(
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        }
    )
    assert container.cpu_quota(root) == 0.5
    assert container.memory_limit(root) is None


def test_notations() -> None:
    assert [parse_size(text) for text in ("32K", "1M", "16 kB", "7")] == [32768, 1048576, 16384, 7]
