// Consumer groups of the Go libraries, for tests: real ones, and what their assignors compute.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	oldsarama "github.com/Shopify/sarama"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const usage = `members BROKERS LIBRARY ASSIGNOR GROUP COUNT TOPIC...
  consume with COUNT members until the input ends; print {"member", "owns"} after each assignment
deal
  read {"library", "assignor", "members", "counts"} a line; print the partitions by member and topic`

type assigned map[string][]int32

var printing sync.Mutex

func main() {
	switch {
	case len(os.Args) > 7 && os.Args[1] == "members":
		count, err := strconv.Atoi(os.Args[6])
		check(err)
		members(strings.Split(os.Args[2], ","), os.Args[3], os.Args[4], os.Args[5], count, os.Args[7:])
	case len(os.Args) == 2 && os.Args[1] == "deal":
		deal()
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func show(value any) {
	printing.Lock()
	defer printing.Unlock()
	check(json.NewEncoder(os.Stdout).Encode(value))
}

func showOwned(member string, owns assigned) {
	show(map[string]any{"member": member, "owns": owns})
}

// Members of a real group

type join func(ctx context.Context, brokers []string, assignor, group string, topics []string)

func members(brokers []string, library, assignor, group string, count int, topics []string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	joins := map[string]join{"kafka-go": joinKafkaGo, "Sarama": joinSarama, "franz-go": joinFranzGo}
	var running sync.WaitGroup
	for range count {
		running.Go(func() { joins[library](ctx, brokers, assignor, group, topics) })
	}
	running.Go(func() {
		for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		}
		stop()
	})
	running.Wait()
}

func joinKafkaGo(ctx context.Context, brokers []string, assignor, group string, topics []string) {
	joined, err := kafkago.NewConsumerGroup(kafkago.ConsumerGroupConfig{
		ID: group, Brokers: brokers, Topics: topics,
		GroupBalancers: []kafkago.GroupBalancer{kafkaGoBalancer(assignor)},
		Dialer:         &kafkago.Dialer{ClientID: "kafka-go", Timeout: 10 * time.Second, DualStack: true},
	})
	check(err)
	defer joined.Close()
	for {
		generation, err := joined.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // of a rebalance: it joins again
			continue
		}
		owns := assigned{}
		for topic, partitions := range generation.Assignments {
			for _, partition := range partitions {
				owns[topic] = append(owns[topic], int32(partition.ID))
			}
		}
		showOwned(generation.MemberID, owns)
		generation.Start(func(ctx context.Context) { <-ctx.Done() })
	}
}

type saramaMember struct{}

func (saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	showOwned(session.MemberID(), session.Claims())
	return nil
}

func (saramaMember) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-session.Context().Done():
			return nil
		case _, open := <-claim.Messages():
			if !open {
				return nil
			}
		}
	}
}

func joinSarama(ctx context.Context, brokers []string, assignor, group string, topics []string) {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{saramaStrategy(assignor)}
	joined, err := sarama.NewConsumerGroup(brokers, group, config)
	check(err)
	defer joined.Close()
	for ctx.Err() == nil {
		check(joined.Consume(ctx, topics, saramaMember{}))
	}
}

func joinFranzGo(ctx context.Context, brokers []string, assignor, group string, topics []string) {
	owns := assigned{}
	var client *kgo.Client
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...),
		kgo.Balancers(franzGoBalancer(assignor)),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, added map[string][]int32) {
			for topic, partitions := range added {
				owns[topic] = append(owns[topic], partitions...)
			}
			member, _ := client.GroupMetadata()
			showOwned(member, owns)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			for topic, partitions := range lost {
				owns[topic] = without(owns[topic], partitions)
			}
		}),
	)
	check(err)
	defer client.Close()
	for ctx.Err() == nil {
		client.PollFetches(ctx)
	}
}

func without(all, lost []int32) []int32 {
	gone := map[int32]bool{}
	for _, partition := range lost {
		gone[partition] = true
	}
	left := []int32{}
	for _, partition := range all {
		if !gone[partition] {
			left = append(left, partition)
		}
	}
	return left
}

func kafkaGoBalancer(assignor string) kafkago.GroupBalancer {
	switch assignor {
	case "range":
		return kafkago.RangeGroupBalancer{}
	case "roundrobin":
		return kafkago.RoundRobinGroupBalancer{}
	case "rack-affinity":
		return kafkago.RackAffinityGroupBalancer{Rack: "r1"}
	}
	panic("kafka-go has no " + assignor)
}

func saramaStrategy(assignor string) sarama.BalanceStrategy {
	switch assignor {
	case "range":
		return sarama.NewBalanceStrategyRange()
	case "roundrobin":
		return sarama.NewBalanceStrategyRoundRobin()
	case "sticky":
		return sarama.NewBalanceStrategySticky()
	case "cooperative-sticky":
		return sarama.NewBalanceStrategyCooperativeSticky()
	}
	panic("Sarama has no " + assignor)
}

func franzGoBalancer(assignor string) kgo.GroupBalancer {
	switch assignor {
	case "range":
		return kgo.RangeBalancer()
	case "roundrobin":
		return kgo.RoundRobinBalancer()
	case "sticky":
		return kgo.StickyBalancer()
	case "cooperative-sticky":
		return kgo.CooperativeStickyBalancer()
	}
	panic("franz-go has no " + assignor)
}

// What assignors compute

type member struct {
	ID         string   `json:"id"`
	Instance   *string  `json:"instance"`
	Topics     []string `json:"topics"`
	Owned      assigned `json:"owned"`
	Generation int32    `json:"generation"`
}

type group struct {
	Library  string           `json:"library"`
	Assignor string           `json:"assignor"`
	Members  []member         `json:"members"`
	Counts   map[string]int32 `json:"counts"`
}

func deal() {
	computes := map[string]func(group) map[string]assigned{
		"kafka-go": dealKafkaGo, "Sarama": dealSarama, "Sarama 1.27.2": dealOldSarama, "franz-go": dealFranzGo,
	}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<24)
	for input.Scan() {
		var asked group
		check(json.Unmarshal(input.Bytes(), &asked))
		show(computes[asked.Library](asked))
	}
	check(input.Err())
}

func numbers(count int32) []int32 {
	all := make([]int32, count)
	for number := range count {
		all[number] = number
	}
	return all
}

func dealKafkaGo(asked group) map[string]assigned {
	var members []kafkago.GroupMember
	for _, one := range asked.Members {
		members = append(members, kafkago.GroupMember{ID: one.ID, Topics: one.Topics})
	}
	var partitions []kafkago.Partition
	for topic, count := range asked.Counts {
		for _, number := range numbers(count) {
			partitions = append(partitions, kafkago.Partition{Topic: topic, ID: int(number)})
		}
	}
	dealt := map[string]assigned{}
	for id, topics := range kafkaGoBalancer(asked.Assignor).AssignGroups(members, partitions) {
		dealt[id] = assigned{}
		for topic, partitions := range topics {
			for _, number := range partitions {
				dealt[id][topic] = append(dealt[id][topic], int32(number))
			}
		}
	}
	return dealt
}

func dealSarama(asked group) map[string]assigned {
	members, topics := map[string]sarama.ConsumerGroupMemberMetadata{}, map[string][]int32{}
	for _, one := range asked.Members {
		had := kmsg.NewStickyMemberMetadata()
		had.Generation = one.Generation
		metadata := sarama.ConsumerGroupMemberMetadata{Version: 2, Topics: one.Topics, GenerationID: one.Generation}
		for topic, partitions := range one.Owned {
			had.CurrentAssignment = append(had.CurrentAssignment, kmsg.StickyMemberMetadataCurrentAssignment{Topic: topic, Partitions: partitions})
			metadata.OwnedPartitions = append(metadata.OwnedPartitions, &sarama.OwnedPartition{Topic: topic, Partitions: partitions})
		}
		metadata.UserData = had.AppendTo(nil)
		members[one.ID] = metadata
	}
	for topic, count := range asked.Counts {
		topics[topic] = numbers(count)
	}
	plan, err := saramaStrategy(asked.Assignor).Plan(members, topics)
	check(err)
	dealt := map[string]assigned{}
	for id, topics := range plan {
		dealt[id] = topics
	}
	return dealt
}

func dealOldSarama(asked group) map[string]assigned {
	members, topics := map[string]oldsarama.ConsumerGroupMemberMetadata{}, map[string][]int32{}
	for _, one := range asked.Members {
		members[one.ID] = oldsarama.ConsumerGroupMemberMetadata{Topics: one.Topics}
	}
	for topic, count := range asked.Counts {
		topics[topic] = numbers(count)
	}
	strategy := oldsarama.BalanceStrategyRange
	if asked.Assignor == "roundrobin" {
		strategy = oldsarama.BalanceStrategyRoundRobin
	}
	plan, err := strategy.Plan(members, topics)
	check(err)
	dealt := map[string]assigned{}
	for id, topics := range plan {
		dealt[id] = topics
	}
	return dealt
}

func dealFranzGo(asked group) map[string]assigned {
	balancer := franzGoBalancer(asked.Assignor)
	var members []kmsg.JoinGroupResponseMember
	for _, one := range asked.Members {
		joined := kmsg.NewJoinGroupResponseMember()
		joined.MemberID, joined.InstanceID = one.ID, one.Instance
		joined.ProtocolMetadata = balancer.JoinGroupMetadata(one.Topics, one.Owned, one.Generation)
		members = append(members, joined)
	}
	sort.Slice(members, func(i, j int) bool { return isBefore(members[i], members[j]) })
	computing, _, err := balancer.MemberBalancer(members)
	check(err)
	into, err := computing.(kgo.GroupMemberBalancerOrError).BalanceOrError(asked.Counts)
	check(err)
	dealt := map[string]assigned{}
	for _, one := range into.IntoSyncAssignment() {
		topics, err := balancer.ParseSyncAssignment(one.MemberAssignment)
		check(err)
		dealt[one.MemberID] = topics
	}
	return dealt
}

// As the client sorts members before it computes.
func isBefore(one, other kmsg.JoinGroupResponseMember) bool {
	if one.InstanceID != nil && other.InstanceID != nil {
		return *one.InstanceID < *other.InstanceID
	}
	if one.InstanceID != nil || other.InstanceID != nil {
		return one.InstanceID != nil
	}
	return one.MemberID < other.MemberID
}
