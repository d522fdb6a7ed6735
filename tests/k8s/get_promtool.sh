#!/bin/sh
# Puts promtool into the folder $1, out of a package that would otherwise also start a server on our ports.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && apt-get download -qq prometheus && dpkg --extract prometheus_*.deb .)
cp "$folder/usr/bin/promtool" "$1/"
