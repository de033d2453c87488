"""What a machine, its daemons and its people leave in a root file system: what goes when it is sealed, and why.

Patterns below the root; a folder that fits goes with all it holds.
"""

from __future__ import annotations

_PEOPLE = (
    ".ssh", ".*_history", ".lesshst", ".viminfo", ".wget-hsts", ".cache", ".ansible", ".config", ".local", ".aws",
    ".azure", ".docker", ".kube", ".netrc", ".gnupg", ".ngc", ".nv", ".gitconfig", ".git-credentials", ".pypirc",
    ".pip", ".npmrc", ".boto", ".s3cfg", ".pgpass", ".my.cnf", ".mylogin.cnf", ".rhosts", ".Xauthority", ".vault-token",
    ".snap", ".huggingface", ".smbcredentials", ".subversion", ".sudo_as_admin_successful", ".k5login",
)  # fmt: skip
GOES: dict[str, tuple[str, ...]] = {
    "keys by which a host proves who it is": (
        "etc/ssh/ssh_host_*", "etc/dropbear/*_host_key", "etc/dropbear/initramfs/*_host_key",
        "etc/dropbear-initramfs/*_host_key", "etc/krb5.keytab", "etc/ssl/private/ssl-cert-snakeoil.key",
        "etc/ssl/certs/ssl-cert-snakeoil.pem", "etc/pki/tls/private/localhost.key",
        "etc/pki/tls/certs/localhost.crt",
        "etc/munge/munge.key", "etc/slurm*/*.key", "var/spool/slurm*/*", "var/lib/slurm*/*", "etc/salt/pki/*",
        "etc/salt/minion_id", "etc/puppetlabs/puppet/ssl", "etc/puppet/ssl", "var/lib/puppet/ssl",
        "etc/pki/consumer/*",
        "etc/pki/entitlement/*", "var/lib/ubuntu-advantage/private/*", "var/lib/ubuntu-advantage/machine-*",
        "etc/kubernetes/*.conf", "etc/kubernetes/pki", "var/lib/kubelet/*", "etc/cni/net.d/*kubeconfig*",
        "etc/rancher/node/*", "var/lib/rancher/*", "var/lib/etcd/*", "etc/wireguard/*", "var/lib/tailscale/*",
        "var/lib/samba/private/*", "var/lib/sss/db/*", "var/lib/sss/mc/*", "var/lib/sss/secrets/*",
        "var/lib/sss/keytabs/*", "etc/ceph/*.keyring", "etc/nvidia/ClientConfigToken/*",
        "etc/enroot/.credentials",
        "etc/containers/auth.json",
        # The modules that it signed stay signed; the key would sign whatever its finder likes.
        "var/lib/dkms/mok.key", "var/lib/shim-signed/mok/*.priv",
    ),
    "identities that daemons made for one machine": (
        "var/lib/dbus/machine-id", "var/lib/dhcp/*", "var/lib/dhclient/*", "var/lib/dhcpcd/*",
        "var/lib/NetworkManager/*", "var/lib/iscsi/*", "etc/iscsi/initiatorname.iscsi", "etc/iscsi/nodes/*",
        "etc/iscsi/send_targets/*", "etc/nvme/hostid", "etc/nvme/hostnqn", "etc/multipath/wwids",
        "etc/multipath/bindings", "etc/lvm/devices/*", "etc/lvm/archive/*", "etc/lvm/backup/*", "etc/hostid",
        "etc/zfs/zpool.cache", "etc/mdadm.conf", "etc/mdadm/mdadm.conf", "etc/crypttab",
        "etc/initramfs-tools/conf.d/resume", "etc/initramfs-tools/conf.d/driver-policy", "etc/adjtime",
        "var/lib/docker/*", "etc/docker/key.json", "var/lib/containerd/*", "var/lib/containers/*",
        "var/lib/cni/*",
        "var/lib/cloud/*", "var/lib/chrony/*", "var/lib/ntp/*", "var/lib/ntpsec/*", "var/lib/fwupd/*",
        "var/lib/tpm/*", "var/lib/tpm2-tss/*", "var/lib/systemd/credential.secret",
        "var/lib/systemd/tpm2-srk-public-key.*", "var/lib/systemd/pcrlock.json", "etc/credstore/*",
        "etc/credstore.encrypted/*", "var/lib/systemd/timesync/*", "var/lib/systemd/timers/*",
        "var/lib/systemd/rfkill/*", "var/lib/systemd/backlight/*", "var/lib/systemd/network/*",
        "var/lib/systemd/linger/*", "var/lib/rhsm/*",
        "var/lib/lldpd/*", "var/lib/snmp/*", "var/lib/net-snmp/*", "var/lib/bluetooth/*",
        "var/lib/landscape/*",
        "etc/insights-client/machine-id", "etc/udev/rules.d/70-persistent-net.rules",
        "etc/udev/rules.d/70-persistent-cd.rules", "var/lib/private/*", "var/lib/nvidia-persistenced/*",
        "var/lib/opensm/*",
    ),
    "seeds of random numbers": ("var/lib/systemd/random-seed", "boot/efi/loader/random-seed", "var/lib/random-seed"),
    "the way of one network": (
        "etc/hostname", "etc/mailname", "etc/machine-info", "etc/netplan/50-cloud-init.yaml",
        "etc/netplan/*installer*",
        "etc/resolv.conf", "etc/NetworkManager/system-connections/*", "etc/sysconfig/network-scripts/ifcfg-*",
        "etc/network/interfaces.d/50-cloud-init*", "etc/apt/apt.conf.d/*proxy*", "etc/environment.d/*proxy*",
        "etc/profile.d/*proxy*", "etc/systemd/system/*.d/*proxy*", "etc/systemd/system.conf.d/*proxy*",
        "etc/systemd/network/10-cloud-init*", "etc/cloud/cloud.cfg.d/*installer*",
        "etc/cloud/ds-identify.cfg",
    ),
    "how the bake gets at an archive": ("etc/apt/auth.conf", "etc/apt/auth.conf.d/*", "etc/pip.conf"),
    "what people left": (
        *(f"{home}/{name}" for home in ("root", "home/*") for name in _PEOPLE),
        "root/*-ks.cfg", "root/snap", "home/*/snap", "var/mail/*", "var/spool/mail/*",
        "var/spool/cron/crontabs/*",
        "var/spool/at/*", "var/spool/anacron/*", "var/lib/sudo/*", "var/lib/AccountsService/users/*",
    ),
    "logs and caches": (
        "var/cache/apt/*", "var/cache/dnf/*", "var/cache/yum/*", "var/cache/debconf/*-old", "var/cache/man/*",
        "var/cache/ldconfig/aux-cache", "var/cache/private/*", "var/lib/apt/lists/*", "var/lib/dpkg/*-old",
        "var/lib/apt/periodic/*", "var/lib/logrotate/*", "var/lib/rsyslog/*", "var/spool/rsyslog/*",
        "var/lib/plocate/*", "var/lib/mlocate/*", "var/lib/wtmpdb/*", "var/lib/lastlog/*", "var/account/*",
        "var/backups/*", "var/crash/*",
        "var/lib/systemd/coredump/*", "var/lib/systemd/pstore/*", "var/lib/ucf/*.[0-9]*", "var/tmp/*",
        "tmp/*", "run/*",
        "etc/.pwd.lock", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-",
        "etc/subgid-",
        "etc/security/opasswd*", "root/.bash_logout-", "etc/ld.so.cache~", "usr/sbin/policy-rc.d",
    ),
    "the writer's record of the bake": ("var/lib/railwright",),
}  # fmt: skip
