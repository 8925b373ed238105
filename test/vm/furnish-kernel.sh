
# The kernel comes from an earlier release of Debian, and all else from this one.
sed "s/ trixie / $kernel_from /" /etc/apt/sources.list >/etc/apt/sources.list.d/earlier.list
apt-get -q update
apt-get -q -y --no-install-recommends install -t "$kernel_from" "linux-image-$(dpkg --print-architecture)"
rm -rf /etc/apt/sources.list.d/earlier.list /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
