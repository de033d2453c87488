#!/bin/sh
# The Python of a fake node: enters the node and runs a plain Python there.
#
# The node's root is its folder `tree`. Of this machine it sees the programs, read only, and the devices; what it
# writes lands in the tree, and there is no path to anything else.
set -eu

if [ "${1-}" != --inside ]; then
    node=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
    # A user who is not root becomes root of a user namespace: enough for bind mounts, and for nothing else.
    if [ "$(id -u)" -eq 0 ]; then user=''; else user=--map-root-user; fi
    # A network namespace of its own: a tool that sets a device cannot meet a real one of the same name.
    # shellcheck disable=SC2086 # for root there is no word
    exec unshare $user --mount --net --ipc --propagation private /bin/sh "$0" --inside "$node" "$@"
fi

node=$2
shift 2
# chroot wants a root that is a mount of its own, or else getcwd and /proc/self/mountinfo make no sense in it.
mount --bind "$node/tree" "$node/tree"
cd "$node/tree"
for place in @VISIBLE@; do
    mount -o rbind,ro "$place" ".$place"
done
mount --rbind /dev dev
# Processes are the kernel's to tell; the rest of /proc is the recorded machine.
mount -o rbind,ro /proc proc/.kernel
# The stand-ins come first on PATH.
mount -o bind,ro "$node/bin" usr/local/sbin
# Where Ansible lays down what a module is to fetch: one path inside and outside.
[ -d ".$node/scratch" ] || mkdir -p ".$node/scratch"
mount --bind "$node/scratch" ".$node/scratch"

exec chroot . /usr/bin/env -i HOME=/root USER=root LOGNAME=root SHELL=/bin/sh LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin @PYTHON@ "$@"
