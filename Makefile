# SPDX-License-Identifier: GPL-2.0-only
# What a person does with this project. Each verb installs what it needs (Debian packages and
# a Python environment), says so, and keeps what was slow to get in one cache folder:
# $LIGHTSLEEP_CACHE, else $XDG_CACHE_HOME/lightsleep, else ~/.cache/lightsleep.

SHELL := bash
ifeq ($(LIGHTSLEEP_CACHE),)
ifneq ($(filter-out 0 1,$(words $(XDG_CACHE_HOME))),)
$(error XDG_CACHE_HOME has spaces, which make cannot handle: set LIGHTSLEEP_CACHE)
endif
ifeq ($(HOME),)
HOME := $(shell getent passwd "$$(id -u)" | cut -d: -f6)
endif
endif
CACHE := $(or $(LIGHTSLEEP_CACHE),$(or $(filter /%,$(XDG_CACHE_HOME)),$(HOME)/.cache)/lightsleep)
export LIGHTSLEEP_CACHE := $(CACHE)

ifneq ($(words $(CACHE)),1)
$(error the path of the cache folder has spaces, which make cannot handle: set LIGHTSLEEP_CACHE)
endif

# One environment per clone and list of requirements: an older one is never in the way.
VENV := $(CACHE)/venv-$(shell { pwd; cat pyproject.toml; } | sha256sum | cut -c1-16)
# Locks the environment for as long as a command uses it: clean-cache leaves it alone.
# Of a path that is gone, flock would make a file, but not of one that ends like this.
USED := flock --no-fork --shared $(VENV)/.
PYTHON := $(USED) $(VENV)/bin/python
LIGHTSLEEP := $(USED) $(VENV)/bin/lightsleep
SUDO := $(shell test $$(id -u) = 0 || echo sudo)

# What the lab needs, and what the tests need on top.
LAB_PACKAGES := python3 python3-venv qemu-system-x86 mmdebstrap bubblewrap squashfs-tools cpio \
	kmod xz-utils zstd git patch unifdef
READER_PACKAGES := pkgconf libtracecmd-dev libtracefs-dev libtraceevent-dev
CHECK_PACKAGES := gcc libc6-dev perl shellcheck qemu-system-arm qemu-system-ppc \
	device-tree-compiler acpica-tools trace-cmd $(READER_PACKAGES) linux-perf \
	babeltrace2 python3-sphinx rsync man-db mount
BENCH_PACKAGES := gcc libc6-dev valgrind
DEB_PACKAGES := build-essential debhelper dh-dkms dh-python fakeroot git python3 \
	pybuild-plugin-pyproject python3-all python3-click python3-rich python3-setuptools

# The grammar checker, which needs no network once it is installed.
GRAMMAR := $(CACHE)/grammar-$(shell cat scripts/grammar/* | sha256sum | cut -c1-16)

OUT := out
ARCH := x86_64
BASE := 6.12
TOPIC :=
RESULTS := docs/results
RUNS := 40
REPEAT := 10
PLAN :=
RECORDING :=
comma := ,

.DEFAULT_GOAL := help
TEST := tests

.PHONY: help env demo deb kernel series test test-quick test-unit test-guests test-alone prefetch slow-tests check check-quick check-repeat check-more lint results reference screens bench false-alarms bench-policy bench-reading bench-replay bench-watch man clean clean-cache

help: ## list these verbs
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

# Of two makes at once, one waits.
# $(call alone,FILE): has the rest of the line hold this lock of the cache. clean-cache may have
# removed the file meanwhile: then others lock another one.
alone = while { mkdir -p -m 700 $(CACHE) && exec 9>> $(CACHE)/.$(1).lock; } || \
	{ echo "cannot write the cache folder $(CACHE): set LIGHTSLEEP_CACHE to a writable folder" >&2; exit 1; }; \
	{ flock -n 9 || { echo "==> waiting for another make: $(1)" >&2; flock 9; }; } && \
	! test $(CACHE)/.$(1).lock -ef /proc/self/fd/9; do :; done

# $(call packages,NAMES): installs those that are missing, and nothing otherwise.
define packages
	@$(call alone,packages); missing=$$(for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2> /dev/null | \
		grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
		echo "==> installing Debian packages:" $$missing; \
		$(SUDO) apt-get -qq update && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install -y --no-install-recommends $$missing > /dev/null; \
	fi
endef

# $(call environment,EXTRAS): the Python environment, finished or not there.
define environment
	@# Who has all extras has each: the next verb asks pip for nothing.
	@# The lab removes from the cache what has such a lock and nobody used for long. The system may
	@# have another Python by now, which finds nothing of what was installed. Python compiles what
	@# it imports, which is a small part of what pip would compile.
	@$(call alone,$(notdir $(VENV))); \
	test ! -e $(VENV)/bin/python || $(VENV)/bin/python -c 'import click' 2> /dev/null || rm -rf $(VENV); \
	if [ ! -e $(VENV)/ready-$(1) ]; then \
		echo "==> Python environment with extras: $(1)"; \
		python3 -m venv $(VENV) && \
		$(VENV)/bin/python -m pip --quiet install --no-compile --disable-pip-version-check \
			-e '.[$(1)]' && \
		touch $(sort $(VENV)/ready-$(1) $(addprefix $(VENV)/ready-,$(subst $(comma), ,$(1)))); \
	fi && touch $(VENV) $(CACHE)/.$(notdir $(VENV)).lock
endef

env: ## make the Python environment of the lab and the tests, print the command that enters it
	$(call packages,$(LAB_PACKAGES))
	$(call environment,lab$(comma)dev)
	@echo ". $(VENV)/bin/activate"

demo: ## boot a stock kernel without and with lightsleep, show what changed
	$(call packages,$(LAB_PACKAGES))
	$(call environment,lab)
	@rm -f $(OUT)/demo/result.json $(OUT)/demo/report.html
	@# A control that differs fails the demo, and is on the page.
	$(LIGHTSLEEP) lab compare idle --arms stock,lightsleep,idle=poll,stock-again \
		--boots 5 --rounds 10 -o $(OUT)/demo/result.json; status=$$?; \
	test ! -e $(OUT)/demo/result.json || \
		$(LIGHTSLEEP) report $(OUT)/demo/result.json -o $(OUT)/demo/report.html || exit; \
	exit $$status

kernel: ## build a kernel with our series of patches: ARCH=x86_64 BASE=6.12
	$(call packages,$(LAB_PACKAGES))
	$(call environment,lab)
	$(LIGHTSLEEP) lab build $(BASE)-series --arch $(ARCH)

series: ## write our patches as mails for git am: BASE=6.12 TOPIC=softirq (default: all) OUT=folder
	$(call packages,$(LAB_PACKAGES))
	$(call environment,lab)
	$(LIGHTSLEEP) lab series $(BASE) $(if $(filter file,$(origin OUT)),$(OUT)/series-$(BASE),$(OUT)) \
		$(addprefix --topic ,$(TOPIC))

deb: ## build the Debian packages in out/deb: the command; the driver and the test modules, by DKMS
	@# pybuild hands this path to a shell, and does not quote it.
	@test $(words $(abspath $(OUT)/deb)) = 1 || { echo "$(abspath $(OUT)/deb): Debian's pybuild cannot handle spaces:" \
		"name another folder, as in: make deb OUT=/var/tmp/lightsleep" >&2; exit 1; }
	$(call packages,$(DEB_PACKAGES))
	@rm -rf $(OUT)/deb
	/usr/bin/python3 scripts/debian_source.py $(OUT)/deb/source
	@# Debian's Python, whatever else is on the PATH.
	cd $(OUT)/deb/source && PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		dpkg-buildpackage --build=binary --no-sign > ../build.log 2>&1 || { tail -n 30 ../build.log; exit 1; }
	@rm -rf $(OUT)/deb/source
	@ls $(OUT)/deb/*.deb

lint: ## linters: Python, shell, spelling, grammar
	$(call packages,python3 python3-venv $(CHECK_PACKAGES))
	$(call environment,lab$(comma)dev)
	@# Debian's npm is hundreds of packages: used where it is there, not installed for this.
	@$(call alone,$(notdir $(GRAMMAR))); test -d $(GRAMMAR) || { rm -rf $(GRAMMAR).new && cp -r scripts/grammar $(GRAMMAR).new && \
		npm ci --silent --prefix $(GRAMMAR).new && mv $(GRAMMAR).new $(GRAMMAR); } || \
		echo "==> no grammar check: npm is not installed, or cannot fetch harper.js"
	@test ! -d $(GRAMMAR) || touch $(GRAMMAR) $(CACHE)/.$(notdir $(GRAMMAR)).lock
	@echo "==> linters"
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy lightsleep benchmarks scripts tests
	git ls-files -z ':!LICENSE' ':!docs/results' ':!tests/fixtures' | xargs -0 $(VENV)/bin/codespell
	@test ! -d $(GRAMMAR) || { echo "==> grammar"; \
		git ls-files -z '*.md' ':!docs/results' | xargs -0 node $(GRAMMAR)/grammar.mjs; }
	shellcheck -x -S warning .ci/run lightsleep/lab/boot/inside/init $$(git ls-files '*.sh')

test: ## some tests: TEST='tests/test_order.py -k median'
	$(call environment,lab$(comma)dev)
	$(PYTHON) -m pytest -q $(TEST)

check-quick: ## the quick tests: they boot and build no kernel
	$(call packages,$(LAB_PACKAGES) $(CHECK_PACKAGES))
	$(call environment,lab$(comma)dev)
	$(MAKE) --no-print-directory -j2 lint test-quick

check: ## every test but those of check-more: boots kernels, too
	$(call packages,$(LAB_PACKAGES) $(CHECK_PACKAGES))
	$(call environment,lab$(comma)dev)
	@# What is fetched meanwhile ends with these. What it leaves, tests make.
	@setpriv --pdeathsig TERM nice -n 19 $(PYTHON) tests/prefetch.py & trap "kill $$! 2> /dev/null" EXIT; \
	$(MAKE) --no-print-directory -j2 lint test-unit
	@# What has booted in one of these goes on in the other: see tests/booted.py. The folder has a
	@# lock: the lab removes it where this is killed.
	@$(call alone,booted-$$$$); export LIGHTSLEEP_TEST_SNAPSHOTS=$(abspath $(CACHE))/.booted-$$$$.scratch; \
	trap 'rm -rf "$$LIGHTSLEEP_TEST_SNAPSHOTS" $(CACHE)/.booted-$$$$.lock' EXIT; \
	rm -rf "$$LIGHTSLEEP_TEST_SNAPSHOTS" && mkdir "$$LIGHTSLEEP_TEST_SNAPSHOTS" && \
	setpriv --pdeathsig TERM $(MAKE) --no-print-directory test-guests && \
	setpriv --pdeathsig TERM $(MAKE) --no-print-directory test-alone

slow-tests: ## time the unit tests, write tests/slow.txt: those that check-quick leaves out
	$(call packages,$(LAB_PACKAGES) $(CHECK_PACKAGES))
	$(call environment,lab$(comma)dev)
	$(PYTHON) -m pytest -q -n 4 -m 'not boot and not build and not more' --junit-xml=$(OUT)/unit.xml
	$(PYTHON) scripts/slow_tests.py $(OUT)/unit.xml

# Parts of the above, to run beside the linters. A third of the time, these tests only wait.
test-quick:
	$(PYTHON) -m pytest -q -n 4 --dist worksteal -m 'not slow and not boot and not build and not more'

test-unit:
	$(PYTHON) -m pytest -q -n 4 --dist worksteal -m 'not boot and not build and not more'

prefetch: ## make what tests with guests need: make check does so beside its first tests
	$(call packages,$(LAB_PACKAGES) $(CHECK_PACKAGES))
	$(call environment,lab$(comma)dev)
	$(PYTHON) tests/prefetch.py

# $(call marked,MARKERS): the files with such tests. pytest would take 20 s to read all others, too.
marked = $$(grep -rlE 'mark\.($(1))' tests --include='test_*.py' | LC_ALL=C sort)

# Parts of make check. Guests wait while builds work, and builds for downloads.
test-guests:
	$(PYTHON) -m pytest -v -n 3 --dist loadfile --no-loadscope-reorder \
		-m '(boot or build) and not alone and not more' $(call marked,boot|build)

# Beside other guests, what measures time would try again and again, and skip in the end.
test-alone:
	$(PYTHON) -m pytest -v -m 'alone and not more' $(call marked,alone)

check-repeat: ## make check REPEAT=10 times, whatever fails; lists what failed; continues where it ended
	$(call packages,python3 python3-venv)
	$(call environment,lab$(comma)dev)
	$(PYTHON) scripts/check_repeat.py $(REPEAT) $(OUT)/check

check-more: ## selftests in more kernels, some built from source: with teo; with lockdep and KASAN
	$(call packages,$(LAB_PACKAGES) $(CHECK_PACKAGES) chromium)
	$(call environment,lab$(comma)dev)
	$(PYTHON) -m pytest -v -m more

results: ## write the pages of results from their JSON files: RESULTS=docs/results
	$(call packages,python3 python3-venv)
	$(call environment,lab)
	$(PYTHON) scripts/results.py $(RESULTS)

reference: ## write the tables of options, files and JSON keys in docs/ from what they describe
	$(call packages,python3 python3-venv)
	$(call environment,lab)
	$(PYTHON) scripts/reference.py

screens: ## draw what try, status and watch show, from real runs in a guest, and a result's page: RESULTS=docs/results
	$(call packages,$(LAB_PACKAGES) chromium)
	$(call environment,lab)
	$(PYTHON) scripts/screens.py $(RESULTS)
	$(PYTHON) scripts/page_screens.py $(RESULTS)/idle-x86_64.json $(RESULTS)

bench: ## run all experiments that pages cite, but those with options (PLAN=1 lists both): hours; goes on where it ended
	$(call packages,$(LAB_PACKAGES) $(CHECK_PACKAGES) sockperf)
	$(call environment,lab)
	$(PYTHON) scripts/bench.py $(OUT)/bench $(if $(PLAN),--plan)

false-alarms: ## compare the same with the same, count how often a difference is shown: RUNS=40
	$(call packages,$(LAB_PACKAGES))
	$(call environment,lab)
	$(PYTHON) scripts/false_alarms.py $(RUNS) $(OUT)/false-alarms \
		$(addprefix --rounds ,$(ROUNDS)) $(addprefix --boots ,$(BOOTS))

bench-policy: ## the polling policy beside other rules, and what an update of it costs
	$(call packages,python3 python3-venv $(BENCH_PACKAGES))
	$(call environment,lab$(comma)dev)
	$(PYTHON) benchmarks/poll_limit.py $(OUT)/poll_limit.json --page docs/polling-policy-figures.md
	$(PYTHON) benchmarks/poll_limit_instructions.py

bench-reading: ## how fast a recording is read: one that a guest makes, or RECORDING=FILE
	$(call packages,$(LAB_PACKAGES) gcc libc6-dev trace-cmd $(READER_PACKAGES))
	$(call environment,lab$(comma)dev)
	$(PYTHON) benchmarks/reading.py $(RECORDING)

bench-replay: ## how fast lightsleep replay is, and how much memory it takes
	$(call packages,python3 python3-venv gcc libc6-dev)
	$(call environment,lab$(comma)dev)
	$(PYTHON) benchmarks/replay.py benchmarks/replay.json --page docs/replay-figures.md

bench-watch: ## what lightsleep watch costs on a machine of 256 CPUs, which is made up
	$(call packages,python3 python3-venv)
	$(call environment,lab$(comma)dev)
	$(PYTHON) benchmarks/watch.py

man: ## man pages of the command-line tool, in out/man
	$(call packages,python3 python3-venv)
	$(call environment,lab$(comma)dev)
	$(PYTHON) scripts/man_pages.py $(OUT)/man

clean: ## remove what was built here, but not results of bench, check-repeat and false-alarms, and not the cache
	@# A folder that somebody names may hold other files: OUT= would name /.
	$(if $(filter file,$(origin OUT)),,$(error make clean removes only ./out: call it without OUT, and remove other folders by hand))
	@# These three go on where they ended. $(OUT) may be a link to a larger disk, or a mount.
	test ! -d $(OUT) || find $(OUT)/ -mindepth 1 -maxdepth 1 \
		! -name bench ! -name check ! -name false-alarms -exec rm -rf {} +
	test ! -d $(OUT) || rmdir $(OUT) 2> /dev/null || :
	rm -rf build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-cache: ## remove lightsleep's downloads and builds from the cache folder; other files stay
	@# What is ours has a lock beside it, by the rule of sweep() in lightsleep/cache.py.
	@# Who builds an entry holds its lock. Who uses one, or the environment, holds one of
	@# the folder itself.
	@for lock in "$(CACHE)"/.[!.]*.lock; do \
		name=$${lock##*/.}; name=$${name%.lock}; \
		test -f "$$lock" || continue; \
		exec 9>> "$$lock" || exit; \
		flock -n 9 || { echo "$(CACHE)/$$name stays: in use"; continue; }; \
		used=; test ! -d "$(CACHE)/$$name" || used="flock -n -E 75 $(CACHE)/$$name"; \
		status=0; ! test "$$lock" -ef /proc/self/fd/9 || $$used \
			rm -rf "$(CACHE)/$$name" "$(CACHE)/$$name.new" "$(CACHE)/.$$name.scratch" "$$lock" || status=$$?; \
		case $$status in 0) ;; 75) echo "$(CACHE)/$$name stays: in use" ;; *) exit $$status ;; esac; \
	done
	@test ! -d "$(CACHE)" || rmdir "$(CACHE)" 2> /dev/null || \
		echo "$(CACHE) stays: it is not empty"
