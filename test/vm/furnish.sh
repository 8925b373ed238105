#!/bin/sh
# Runs in the new root, as the last step of building the image of the virtual machine.
set -eu
echo node >/etc/hostname
echo '127.0.0.1 localhost node' >/etc/hosts
echo '/dev/vda / ext4 rw,relatime 0 1' >/etc/fstab
: >/etc/machine-id
passwd -d root >/dev/null
systemctl -q disable docker-registry apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer man-db.timer 2>/dev/null || true
systemctl -q mask systemd-timesyncd e2scrub_reap systemd-networkd-wait-online 2>/dev/null || true

# What is on the second disk runs once the node is up. What it says goes out through the second serial port.
cat >/etc/systemd/system/payload.service <<'UNIT'
[Unit]
Description=The tests on the second disk
After=multi-user.target
Wants=dev-vdb.device
After=dev-vdb.device

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/payload
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/ttyS1
Delegate=yes
TimeoutStartSec=infinity

[Install]
WantedBy=graphical.target
UNIT

# The kernel rewrites its own code when the first group gets a processor limit or a device filter, and when the last one is gone. An
# emulator that runs one thread per processor may still execute the code of before, on which the kernel panics. So one unit has both
# for as long as the node is up.
cat >/etc/systemd/system/code-stays.service <<'UNIT'
[Unit]
Description=Keeps the code of processor limits and device filters in the kernel

[Service]
ExecStart=/usr/bin/sleep infinity
CPUQuota=100%
DevicePolicy=closed

[Install]
WantedBy=multi-user.target
UNIT
systemctl -q enable code-stays

cat >/usr/local/sbin/payload <<'SCRIPT'
#!/bin/sh
stty -F /dev/ttyS1 raw -echo
mkdir -p /payload
mount /dev/vdb /payload && cd /payload && sh -c ./run
echo "payload: ended with $?"
sync
systemctl --no-block start poweroff.target # not `poweroff`, which first waits for a logind that is not there
SCRIPT
chmod 755 /usr/local/sbin/payload
systemctl -q enable payload
systemctl -q set-default graphical.target
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc /usr/share/man /usr/share/locale
