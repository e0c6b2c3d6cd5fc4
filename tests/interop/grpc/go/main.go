// RocketMQ's Go client for gRPC through everything it can do with a broker: peer HOST:PORT PREFIX
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const patience = 90 * time.Second

var endpoint, prefix = os.Args[1], os.Args[2]

type seen struct {
	Body    string   `json:"body"`
	ID      string   `json:"id"`
	Tag     *string  `json:"tag"`
	Keys    []string `json:"keys"`
	P       string   `json:"p"`
	Attempt int32    `json:"attempt"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func described(view *rmq.MessageView) seen {
	return seen{string(view.GetBody()), view.GetMessageId(), view.GetTag(), view.GetKeys(),
		view.GetProperties()["p"], view.GetDeliveryAttempt()}
}

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{
		AccessKey: os.Getenv("ROCKETMQ_ACCESS_KEY"), AccessSecret: os.Getenv("ROCKETMQ_SECRET_KEY")}}
}

func message(topic, body string) *rmq.Message {
	return &rmq.Message{Topic: prefix + topic, Body: []byte(body)}
}

func simple(group, topic, expression string) rmq.SimpleConsumer {
	consumer, err := rmq.NewSimpleConsumer(config(prefix+group), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{
			prefix + topic: rmq.NewFilterExpression(expression)}))
	check(err)
	check(consumer.Start())
	return consumer
}

func some(consumer rmq.SimpleConsumer) []*rmq.MessageView {
	views, err := consumer.Receive(context.Background(), 16, 20*time.Second)
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		return nil
	}
	check(err)
	return views
}

func receive(consumer rmq.SimpleConsumer, count int) []seen {
	found := []seen{}
	for deadline := time.Now().Add(patience); len(found) < count && time.Now().Before(deadline); {
		for _, view := range some(consumer) {
			found = append(found, described(view))
			check(consumer.Ack(context.Background(), view))
		}
	}
	return found
}

func bodies(all []seen) []string {
	found := []string{}
	for _, each := range all {
		found = append(found, each.Body)
	}
	return found
}

func push(group, topic string, enough func([]seen, []string) bool, fails map[string]int) ([]seen, []string) {
	var lock sync.Mutex
	all, consumed := []seen{}, []string{}
	listener := func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		each := described(view)
		all = append(all, each)
		if fails[each.Body] > 0 {
			fails[each.Body]--
			return rmq.FAILURE
		}
		consumed = append(consumed, each.Body)
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(config(prefix+group), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{prefix + topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener}))
	check(err)
	check(consumer.Start())
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		lock.Lock()
		done := enough(all, consumed)
		lock.Unlock()
		if done {
			break
		}
	}
	time.Sleep(500 * time.Millisecond) // the last acknowledgement is on its way
	consumer.GracefulStop()
	return all, consumed
}

func main() {
	rmq.EnableSsl = false
	result := map[string]any{}
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics(prefix+"N", prefix+"F", prefix+"D", prefix+"X"),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(*rmq.MessageView) rmq.TransactionResolution { return rmq.COMMIT }}))
	check(err)
	check(producer.Start())
	send := func(one *rmq.Message) *rmq.SendReceipt {
		receipts, err := producer.Send(context.Background(), one)
		check(err)
		return receipts[0]
	}

	sent := []string{}
	for number := 0; number < 10; number++ {
		one := message("N", fmt.Sprintf("n-%d", number))
		one.SetTag(string("ab"[number%2]))
		one.SetKeys(fmt.Sprintf("k-%d", number))
		one.AddProperty("p", fmt.Sprint(number))
		sent = append(sent, send(one).MessageID)
	}
	result["sent"] = sent
	consumer := simple("gs", "N", "a")
	received := []seen{}
	for deadline := time.Now().Add(patience); len(received) < 5 && time.Now().Before(deadline); {
		for _, view := range some(consumer) {
			if received = append(received, described(view)); len(received) == 1 {
				result["changed"] = string(view.GetBody())
				check(consumer.ChangeInvisibleDuration(view, time.Second))
			} else {
				check(consumer.Ack(context.Background(), view))
			}
		}
	}
	result["simple"] = received
	result["again"] = receive(consumer, 1)
	consumer.GracefulStop()

	all := func(count int) func([]seen, []string) bool {
		return func(_ []seen, consumed []string) bool { return len(consumed) >= count }
	}
	result["push"], _ = push("gp", "N", all(10), map[string]int{"n-0": 1})

	for number := 0; number < 6; number++ {
		one := message("F", fmt.Sprintf("f-%d", number))
		one.SetMessageGroup("g1")
		send(one)
	}
	_, result["fifo"] = push("go", "F", all(6), map[string]int{"f-2": 1})

	due := time.Now().Add(4 * time.Second)
	var handle string
	for _, body := range []string{"recalled", "kept"} {
		one := message("D", body)
		one.SetDelayTimestamp(due)
		if receipt := send(one); body == "recalled" {
			handle = receipt.RecallHandle
		}
	}
	_, err = producer.Recall(context.Background(), prefix+"D", handle)
	check(err)
	consumer = simple("gd", "D", "*")
	result["delayed"] = bodies(receive(consumer, 1))
	result["early"] = time.Now().Before(due)
	consumer.GracefulStop()

	for _, body := range []string{"commit", "rollback", "orphan"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), message("X", body), transaction)
		check(err)
		switch body {
		case "commit":
			check(transaction.Commit())
		case "rollback":
			check(transaction.RollBack())
		}
	}
	consumer = simple("gx", "X", "*")
	ended := bodies(receive(consumer, 2))
	sort.Strings(ended)
	result["transactions"] = ended
	consumer.GracefulStop()

	one := message("F", "dead")
	one.SetMessageGroup("g2")
	send(one)
	dead := func(all []seen) int {
		count := 0
		for _, each := range all {
			if each.Body == "dead" {
				count++
			}
		}
		return count
	}
	seenDead, _ := push("gq", "F", func(all []seen, _ []string) bool { return dead(all) >= 2 }, map[string]int{"dead": 99})
	result["dead"] = dead(seenDead)

	producer.GracefulStop()
	line, err := json.Marshal(result)
	check(err)
	fmt.Println(string(line))
	os.Exit(0)
}
