// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The guest's end of a virtio-serial port, for init and for workloads. */
#ifndef BIFOLD_PORT_H
#define BIFOLD_PORT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Opens the virtio-serial port of this name, which is searched in sysfs because no udev runs here. Ports
 * appear one after the other, and late on a host that is busy with many guests. */
static int port(const char *name, int flags)
{
    for (int tries = 0; tries < 4000; tries++) {
        DIR *d = opendir("/sys/class/virtio-ports");
        struct dirent *e;

        while (d && (e = readdir(d))) {
            char path[512], found[64] = "";
            int fd;

            snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", e->d_name);
            fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd < 0)
                continue;
            if (read(fd, found, sizeof found - 1) < 0)
                found[0] = 0;
            close(fd);
            found[strcspn(found, "\n")] = 0;
            if (strcmp(found, name))
                continue;
            snprintf(path, sizeof path, "/dev/%s", e->d_name);
            fd = open(path, flags | O_CLOEXEC);
            if (fd >= 0) {
                closedir(d);
                return fd;
            }
        }
        if (d)
            closedir(d);
        usleep(5000);
    }
    errno = ENODEV;
    return -1;
}

/* Sends a line, cut off if it is long. The host may have gone: a line that is lost is no reason to stop. */
static void send_line(int fd, const char *fmt, va_list ap)
{
    char line[512];
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);

    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (write(fd, line, (size_t)n) < 0)
        return;
}

#endif
