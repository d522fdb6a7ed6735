# The root file system, process space and user of one container: container.sh FOLDER USER COMMAND...
#
# FOLDER holds what the kubelet would have prepared: `mounts`, a line for each ("KIND SOURCE PATH": ro, rw or tmpfs),
# `resolv.conf`, and `open`, folders above the interpreter and this repository that the user must be able to enter.
set -eu
folder=$1 user=$2
shift 2
mount -t tmpfs none "$folder/scratch"
mkdir "$folder/scratch/upper" "$folder/scratch/work" "$folder/scratch/root"
root=$folder/scratch/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/scratch/upper,workdir=$folder/scratch/work" "$root"
while read -r path; do chmod o+x "$root$path"; done <"$folder/open"
rm -f "$root/etc/resolv.conf"
cp "$folder/resolv.conf" "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while read -r kind source path; do
    mkdir -p "$root$path"
    case $kind in
    tmpfs) mount -t tmpfs -o mode=1777 none "$root$path" ;;
    *) mount --bind "$source" "$root$path" ;;
    esac
    test "$kind" != ro || mount -o remount,bind,ro "$root$path"
done <"$folder/mounts"
mount -o remount,bind,ro "$root"
cd "$root"
exec chroot . setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --inh-caps=-all \
    --bounding-set=-all -- sh -c 'cd /tmp && exec "$@"' sh "$@"
