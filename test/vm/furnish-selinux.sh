
# The policy is loaded at boot, and denies nothing until a test says so. Then it holds containers to it; what the node runs itself it only
# watches, because the tests have Berth and all its files in places of which no policy knows.
sed -i 's/^SELINUX=.*/SELINUX=permissive/; s/^SELINUXTYPE=.*/SELINUXTYPE=default/' /etc/selinux/config
for type in kernel_t init_t initrc_t unconfined_t dockerd_t container_engine_t iptables_t ifconfig_t udev_t syslogd_t systemd_logind_t unlabeled_t; do
    echo "(optional watch_$type (typepermissive $type))"
done >/watched.cil
semodule -n -s default -i /watched.cil
rm /watched.cil

# Every file gets the label that the policy has for it; those that come on the second disk do not.
setfiles -F -e /proc -e /sys -e /dev /etc/selinux/default/contexts/files/file_contexts /
