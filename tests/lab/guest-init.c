/*
 * First process of the guest on Debian's own kernels, from the initramfs: loads the modules, mounts the host's files
 * read-only (9p), and goes on with tests/lab/guest/init, as the User Mode Linux guests do from the start.
 * LAB_RUN, the host path of the run folder, comes from the kernel command line into the environment. With LAB_ROOT the
 * files of a second share, programs for this processor, are laid over the host's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what)
{
	printf("lab-guest: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	reboot(RB_POWER_OFF);
	_exit(1);
}

/* The file /modules names them, each after those that it needs. A module for a processor that this is not is left out. */
static void load_modules(void)
{
	FILE *list = fopen("/modules", "re");
	char path[256];

	if (!list)
		fail("/modules");
	while (fgets(path, sizeof(path), list)) {
		int fd;

		path[strcspn(path, "\n")] = 0;
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST && errno != ENODEV))
			fail(path);
		close(fd);
	}
	fclose(list);
}

static void mount_share(const char *tag, const char *where)
{
	if (mkdir(where, 0755) ||
	    mount(tag, where, "9p", MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"))
		fail(tag);
}

int main(void)
{
	const char *run = getenv("LAB_RUN");
	char init[4096];

	if (!run)
		fail("LAB_RUN");
	load_modules();
	mount_share("root", "/host");
	if (getenv("LAB_ROOT")) {
		mount_share("arch", "/arch");
		if (mkdir("/both", 0755) || mount("both", "/both", "overlay", MS_RDONLY, "lowerdir=/arch:/host"))
			fail("the files of both shares");
	}
	if (chdir(getenv("LAB_ROOT") ? "/both" : "/host") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail("the root");
	snprintf(init, sizeof(init), "%s/guest/init", run);
	execl(init, init, (char *)NULL);
	fail(init);
}
