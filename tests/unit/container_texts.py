"""Configurations of containerd as they are found on nodes."""

from __future__ import annotations

# As `containerd config default` of 1.7 writes it, cut to what matters; and the two that packages bring.
FORM_2 = """\
disabled_plugins = []
imports = []
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]
    cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
    enable_cdi = false
    sandbox_image = "registry.k8s.io/pause:3.8"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true
"""
FORM_3 = """\
version = 3
imports = ['/etc/containerd/conf.d/*.toml']

[plugins.'io.containerd.cri.v1.runtime']
  max_container_log_line_size = 16384
"""
OF_DOCKER = """#   Copyright\ndisabled_plugins = ["cri"]\n#root = "/var/lib/containerd"\n"""
