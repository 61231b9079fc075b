#!/bin/bash
# Builds a real kube-apiserver, with etcd and kubectl beside it, from Debian's packages and sources alone:
#
#     tests/cluster/api_server/build.sh [FOLDER]         # ~/.cache/dsgd-lab/api-server; 5 minutes of CPU, 2 GB while it builds
#
# Leaves FOLDER/bin/{kube-apiserver,etcd,kubectl}. It takes the archive that this machine's apt is configured for,
# and neither installs anything nor touches the system's own lists: each suite has lists of its own in FOLDER.
# Needs Debian's apt, and its archive keyring. A build that was interrupted goes on where it was.
#
# kube-apiserver is 1.20.2, the last whose whole source Debian carries (bullseye); Go 1.15 is of the same suite.
# etcd and kubectl are those of trixie: `kubectl exec` by WebSocket, as RecordedKubelet answers, needs 1.31.
set -euo pipefail

KUBERNETES=1.20.2
folder=$(realpath -m "${1:-$HOME/.cache/dsgd-lab/api-server}")
work=$folder/work
mkdir -p "$folder/bin" "$work"/{debs,source,bin}

say() { echo "== $*"; }

# of SUITE COMMAND...: a command of apt, on a suite that the system itself need not have.
of() {
    local lists=$work/apt/$1
    shift
    "$@" -o "Dir::State=$lists" -o "Dir::State::lists=$lists/lists" -o "Dir::State::status=$lists/status" \
        -o "Dir::Cache=$lists/cache" -o "Dir::Etc::sourcelist=$lists/none" -o "Dir::Etc::sourceparts=$lists/sources" \
        -o "Dir::Etc::preferencesparts=$lists/preferences" -o APT::Sandbox::User=root
}

read_lists() {
    local suite=$1 lists=$work/apt/$1 archive
    archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -1)
    mkdir -p "$lists"/{lists/partial,cache/archives/partial,sources,preferences}
    : >"$lists/status"
    cat >"$lists/sources/archive.sources" <<SOURCES
Types: deb deb-src
URIs: $archive
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    of "$suite" apt-get update --quiet=2
}

download() {
    say "packages and source"
    read_lists bullseye
    read_lists trixie
    (cd "$work/debs" && of trixie apt-get download --quiet=2 etcd-server kubectl)
    (cd "$work/debs" && of bullseye apt-get download --quiet=2 golang-1.15-go golang-1.15-src)
    # Of the source package upstream's part is enough, and the only one that is still there; apt checks its hash.
    (cd "$work/debs" && of bullseye apt-get source --download-only --quiet=2 kubernetes 2>/dev/null || true)
    ls "$work/debs"/kubernetes_*.orig.tar.gz >/dev/null
}

unpack() {
    say "unpacking"
    local package
    for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/packages"; done
    rm -rf "$work/source" && mkdir "$work/source"
    tar xzf "$work"/debs/kubernetes_*.orig.tar.gz -C "$work/source"
    cp "$work/packages/usr/bin/"{etcd,kubectl} "$folder/bin/"
}

# 1.20's source lacks its generated OpenAPI. Its generator knows no modules: it works on a GOPATH of hard links.
generate_openapi() {
    say "the API's description"
    local gopath=$work/gopath place=$work/gopath/src/k8s.io/kubernetes generated=pkg/generated/openapi/zz_generated.openapi.go
    rm -rf "$gopath" && mkdir -p "$(dirname "$place")"
    cp -al "$work/source/kubernetes-$KUBERNETES" "$place"
    (
        cd "$place"
        export GO111MODULE=off GOPATH=$gopath
        go build -o "$work/bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
        described=$(grep -rl '+k8s:openapi-gen=' --include=*.go pkg plugin cmd vendor/k8s.io/*/ |
            grep -v -E '^vendor/k8s.io/(code-generator|sample-apiserver|kube-openapi)/|/testdata/' |
            xargs -n1 dirname | sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
        "$work/bin/openapi-gen" -i "$described" -p k8s.io/kubernetes/pkg/generated/openapi \
            -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations.txt"
    )
    cp --remove-destination "$place/$generated" "$work/source/kubernetes-$KUBERNETES/$generated"
}

compile() {
    say "kube-apiserver"
    local place flags="-s -w"
    for place in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $place.gitVersion=v$KUBERNETES -X $place.gitMajor=1 -X $place.gitMinor=20"
    done
    cd "$work/source/kubernetes-$KUBERNETES"
    GO111MODULE=on GOFLAGS=-mod=vendor GOPROXY=off GOSUMDB=off GOPATH=$work/modules \
        go build -trimpath -o "$folder/bin/kube-apiserver.partial" -ldflags "$flags" ./cmd/kube-apiserver
    mv "$folder/bin/kube-apiserver.partial" "$folder/bin/kube-apiserver"
}

# once NAME: do a step that is not done yet.
once() {
    if [ -e "$work/$1.done" ]; then return; fi
    "$1"
    touch "$work/$1.done"
}

if [ ! -x "$folder/bin/kube-apiserver" ]; then
    command -v apt-get >/dev/null || { say "no apt here: this needs Debian, or one of its kind"; exit 2; }
    export GOROOT=$work/packages/usr/lib/go-1.15 GOCACHE=$work/cache CGO_ENABLED=0
    export PATH=$GOROOT/bin:$PATH
    once download
    once unpack
    once generate_openapi
    compile
    rm -rf "$work"
fi
"$folder/bin/kube-apiserver" --version
"$folder/bin/etcd" --version | head -1
"$folder/bin/kubectl" version --client | head -1
