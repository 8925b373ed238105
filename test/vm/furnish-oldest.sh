
# The oldest kernel that Berth runs on comes from the release of Debian that had it, and all else from this one.
sed 's/ trixie / bullseye /' /etc/apt/sources.list >/etc/apt/sources.list.d/oldest.list
apt-get -q update
apt-get -q -y --no-install-recommends install -t bullseye "linux-image-$(dpkg --print-architecture)"
rm -rf /etc/apt/sources.list.d/oldest.list /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
