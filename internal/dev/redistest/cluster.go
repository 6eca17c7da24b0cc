package redistest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Slots is the number of a cluster's slots.
const Slots = 16384

// Cluster is a cluster of servers. The masters come first, each with an equal part of the
// slots. If there are replicas, one for each master follows. After Kill, a replica takes
// its master's place within a second. A slow master, for example on a busy machine, stays.
type Cluster struct {
	Nodes   []*Server
	Masters int
	ids     []string
}

// StartCluster starts a cluster, and returns when all its nodes agree. If replicas is true, each master has one.
func StartCluster(t testing.TB, masters int, replicas bool) *Cluster {
	t.Helper()
	c := &Cluster{Masters: masters}
	n := masters
	if replicas {
		n *= 2
	}
	buses := make([]string, n)
	for i := range n {
		s := Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
		c.Nodes, buses[i] = append(c.Nodes, s), s.bus
		c.ids = append(c.ids, must(t, c.Nodes[i], "CLUSTER", "MYID"))
		must(t, c.Nodes[i], "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters {
			must(t, c.Nodes[i], "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*Slots/masters), strconv.Itoa((i+1)*Slots/masters-1))
		}
	}
	c.introduce(t, buses)
	c.await(t, fmt.Sprintf("cluster_known_nodes:%d", n))
	for i := masters; i < n; i++ {
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if _, err := c.Nodes[i].Do("CLUSTER", "REPLICATE", c.ids[i-masters]); err == nil {
				break
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	c.await(t, fmt.Sprintf("cluster_slots_assigned:%d", Slots)) // the state may be ok before a node knows all owners
	c.await(t, "cluster_state:ok")
	for i := masters; i < n; i++ {
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if info, _ := c.Nodes[i].Do("INFO", "replication"); strings.Contains(info, "master_link_status:up") {
				break
			} else if time.Now().After(deadline) {
				t.Fatal("a replica does not follow its master")
			}
		}
	}
	c.patience(t, "15000") // with a lower value the nodes find each other faster
	return c
}

// introduce makes the first node meet the others. If a busy machine takes
// longer than the nodes' timeout, the meeting is forgotten, and made again.
func (c *Cluster) introduce(t testing.TB, buses []string) {
	t.Helper()
	var met time.Time
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		again := time.Since(met) > 2*time.Second
		if again {
			met = time.Now()
		}
		known, strangers := must(t, c.Nodes[0], "CLUSTER", "NODES"), 0
		for i, s := range c.Nodes {
			if strings.Contains(known, c.ids[i]) {
				continue
			}
			strangers++
			if again {
				host, port, _ := net.SplitHostPort(s.Addr)
				must(t, c.Nodes[0], "CLUSTER", "MEET", host, port, buses[i])
			}
		}
		if strangers == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a node does not meet %d of the others", strangers)
		}
	}
}

// patience sets how long a node may be silent, in milliseconds.
func (c *Cluster) patience(t testing.TB, ms string) {
	t.Helper()
	for _, s := range c.Nodes {
		must(t, s, "CONFIG", "SET", "cluster-node-timeout", ms)
	}
}

// Replicated waits until a master's replica has received all data written to the master.
func (c *Cluster) Replicated(node int) error {
	var seen string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		info, err := c.Nodes[node].Do("INFO", "replication")
		if err != nil {
			return err
		}
		var is, has string
		for line := range strings.Lines(info) {
			if at, ok := strings.CutPrefix(line, "master_repl_offset:"); ok {
				is = strings.TrimSpace(at)
			} else if _, at, ok := strings.Cut(line, ",offset="); ok && strings.HasPrefix(line, "slave") {
				has, _, _ = strings.Cut(at, ",")
			}
		}
		if is != "" && is == has {
			return nil
		}
		seen = info
	}
	return fmt.Errorf("redistest: node %d is ahead of its replica: %s", node, seen)
}

// Kill ends a node's process. All nodes must be running. If the node is a master with a replica, the replica takes its place.
func (c *Cluster) Kill(t testing.TB, node int) {
	t.Helper()
	c.patience(t, "1000")
	c.Nodes[node].Kill()
}

// await waits until each node reports the state.
func (c *Cluster) await(t testing.TB, what string) {
	t.Helper()
	for _, s := range c.Nodes {
		for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if info, _ := s.Do("CLUSTER", "INFO"); strings.Contains(info, what+"\r\n") {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("the cluster does not come to %s", what)
			}
		}
	}
}

func must(t testing.TB, s *Server, args ...string) string {
	t.Helper()
	answer, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return answer
}

// Addrs returns all nodes' addresses.
func (c *Cluster) Addrs() (addrs []string) {
	for _, s := range c.Nodes {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Slot returns a key's slot.
func (c *Cluster) Slot(key string) (int, error) {
	answer, err := c.Nodes[0].Do("CLUSTER", "KEYSLOT", key)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(answer)
}

// Move moves a slot with its keys from one master to another one, as an operator's tool does. In the middle, when both have
// keys of the slot, it calls during. If during is nil, a server able to move whole slots by itself (Valkey 9) does so.
func (c *Cluster) Move(slot, from, to int, during func()) error {
	s, a, b := strconv.Itoa(slot), c.Nodes[from], c.Nodes[to]
	if during == nil {
		switch _, err := a.Do("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", s, s, "NODE", c.ids[to]); {
		case err == nil:
			return c.moved(slot, from, to)
		case !strings.Contains(err.Error(), "unknown subcommand"):
			return err
		}
	}
	if _, err := b.Do("CLUSTER", "SETSLOT", s, "IMPORTING", c.ids[from]); err != nil {
		return err
	}
	if _, err := a.Do("CLUSTER", "SETSLOT", s, "MIGRATING", c.ids[to]); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(b.Addr)
	for round := 0; ; round++ {
		keys, err := a.Do("CLUSTER", "GETKEYSINSLOT", s, "1")
		if err != nil {
			return err
		}
		if keys == "" {
			break
		}
		if _, err := a.Do("MIGRATE", host, port, keys, "0", "30000"); err != nil {
			return err
		}
		if during != nil {
			during()
		}
	}
	for _, i := range []int{to, from} { // first at the new owner, so that the slot always has an owner
		if _, err := c.Nodes[i].Do("CLUSTER", "SETSLOT", s, "NODE", c.ids[to]); err != nil {
			return err
		}
	}
	return c.agree(to)
}

// moved waits until a server has moved a slot by itself.
func (c *Cluster) moved(slot, from, to int) error {
	jobs := ""
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		jobs, _ = c.Nodes[from].Do("CLUSTER", "GETSLOTMIGRATIONS")
		newest, _, _ := strings.Cut(jobs, "\nmessage\n")
		switch state := newest[strings.LastIndex(newest, "\n")+1:]; state {
		case "success":
			return c.agree(to)
		case "failed", "cancelled":
			return fmt.Errorf("redistest: moving slot %d: %s", slot, jobs)
		}
	}
	return fmt.Errorf("redistest: slot %d does not move: %s", slot, jobs)
}

// agree waits until all answering nodes know a node's epoch. Otherwise the next move of
// the same slot could get the same epoch, and its two owners would redirect to each other.
func (c *Cluster) agree(node int) error {
	want := ""
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		same := true
		for i := range c.Nodes {
			at := (node + i) % len(c.Nodes) // begins with the node itself
			list, err := c.Nodes[at].Do("CLUSTER", "NODES")
			if err != nil {
				continue
			}
			epoch := epochIn(list, c.ids[node])
			if at == node {
				want = epoch
			}
			same = same && epoch == want
		}
		if same {
			return nil
		}
	}
	return fmt.Errorf("redistest: the nodes do not agree on epoch %s", want)
}

// epochIn returns a node's epoch in the output of CLUSTER NODES.
func epochIn(list, id string) string {
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 6 && fields[0] == id {
			return fields[6]
		}
	}
	return ""
}
