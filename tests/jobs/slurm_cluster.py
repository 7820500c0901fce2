"""A Slurm cluster of two nodes on this machine: a real munged, slurmctld and two slurmds, which end with it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
NODES = ("node1", "node2")

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
# A job that is requeued waits until its credential has expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=2,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={node1_port} CPUs=2 State=UNKNOWN
NodeName=node2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={node2_port} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no cluster can be started here; empty where one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=":".join(FOLDERS)) is None]
    if missing:
        return f"Debian's slurmctld, slurmd, slurm-client and munge are not all installed: no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "slurmd runs as root only"
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        return "no mount namespace can be made, in which node1 and node2 are this machine"
    return ""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_for(what: str, happened) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} has not come up")
        time.sleep(0.2)


@contextlib.contextmanager
def cluster(folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """Runs the cluster in `folder`; gives the variables by which Slurm's commands find it."""
    controller_port, node1_port, node2_port = _free_ports(3)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder, controller_port=controller_port, node1_port=node1_port, node2_port=node2_port
        )
    )
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "state").mkdir()
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    (folder / "hosts").write_text(pathlib.Path("/etc/hosts").read_text() + "\n127.0.0.1 node1 node2\n")
    environment = os.environ | {"SLURM_CONF": str(configuration), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> None:
        inside = f'mount --bind {folder}/hosts /etc/hosts && exec "$@"'
        with (folder / f"{name}.out").open("wb") as output:
            processes.append(
                subprocess.Popen(
                    ["unshare", "-m", "sh", "-c", inside, "sh", *command], env=environment, stdout=output, stderr=output
                )
            )

    def nodes_are_idle() -> bool:
        said = subprocess.run(["sinfo", "-h", "-o", "%D %t"], env=environment, check=False, capture_output=True)
        return said.stdout.split() == [b"2", b"idle"]

    try:
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        start("munged", "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        _wait_for("munged", lambda: (folder / "munge.socket").exists())
        start("slurmctld", "slurmctld", "-D", "-f", str(configuration))
        for node in NODES:
            start(node, "slurmd", "-D", "-N", node, "-f", str(configuration))
        _wait_for(f"the cluster in {folder}", nodes_are_idle)
        yield {"SLURM_CONF": str(configuration), "PATH": environment["PATH"]}
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, check=False, capture_output=True)
        with contextlib.suppress(TimeoutError):
            _wait_for("the end of all jobs", nodes_are_idle)
        for process in reversed(processes):  # munged last
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
