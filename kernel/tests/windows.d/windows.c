// SPDX-License-Identifier: GPL-2.0-only

/* For kernel/tests/windows: each window of paging_windows.h waits as long as its parameter says. */
#include <linux/delay.h>

static unsigned int window_us[KVM_PAGING_WINDOW_COUNT];
static atomic_t window_hits[KVM_PAGING_WINDOW_COUNT];
static const char *const window_names[] = {
#define KVM_PAGING_WINDOW_NAME(name, why) #name,
	KVM_PAGING_WINDOWS(KVM_PAGING_WINDOW_NAME)
};

#define KVM_PAGING_WINDOW_PARAMETER(name, why)							\
	module_param_named(window_##name, window_us[KVM_PAGING_WINDOW_##name], uint, 0644);	\
	MODULE_PARM_DESC(window_##name, why);
KVM_PAGING_WINDOWS(KVM_PAGING_WINDOW_PARAMETER)

static int set_all(const char *word, const struct kernel_param *kp)
{
	unsigned int us;
	int i, r = kstrtouint(word, 0, &us);

	for (i = 0; !r && i < KVM_PAGING_WINDOW_COUNT; i++)
		WRITE_ONCE(window_us[i], us);
	return r;
}

static const struct kernel_param_ops all_ops = { .set = set_all };
module_param_cb(all_windows, &all_ops, NULL, 0200);
MODULE_PARM_DESC(all_windows, "Microseconds for all windows");

/* How often each window was passed: what is never passed is not tested. */
static int get_hits(char *out, const struct kernel_param *kp)
{
	int i, n = 0;

	for (i = 0; i < KVM_PAGING_WINDOW_COUNT; i++)
		n += sysfs_emit_at(out, n, "%s %d\n", window_names[i], atomic_read(&window_hits[i]));
	return n;
}

static const struct kernel_param_ops hits_ops = { .get = get_hits };
module_param_cb(window_hits, &hits_ops, NULL, 0444);
MODULE_PARM_DESC(window_hits, "How often each window was passed");

void kvm_paging_wait(enum kvm_paging_window window, bool may_sleep)
{
	unsigned int us = READ_ONCE(window_us[window]);

	atomic_inc(&window_hits[window]);
	if (may_sleep) {
		if (us)
			fsleep(us);
		return;
	}
	/* Under a lock. Longer, and the watchdogs would speak of it. */
	for (us = min(us, 1000u); us; us -= min(us, 50u))
		udelay(min(us, 50u));
}
EXPORT_SYMBOL_GPL(kvm_paging_wait);

/* A device without coherent DMA that comes and goes, which no laboratory has: KVM_PAGING_TEST_DMA of a VM's debugfs. */
static ssize_t dma_write(struct file *file, const char __user *from, size_t n, loff_t *at)
{
	struct kvm *kvm = file_inode(file)->i_private;
	bool on;
	int r = kstrtobool_from_user(from, n, &on);

	if (r)
		return r;
	if (on)
		kvm_arch_register_noncoherent_dma(kvm);
	else
		kvm_arch_unregister_noncoherent_dma(kvm);
	return n;
}

static const struct file_operations dma_fops = { .owner = THIS_MODULE, .write = dma_write };

void kvm_paging_create_test_files(struct kvm *kvm)
{
	debugfs_create_file("test_noncoherent_dma", 0200, kvm->debugfs_dentry, kvm, &dma_fops);
}
