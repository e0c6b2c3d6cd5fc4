// RocketMQ's Go client (rocketmq-client-go/v2) as a peer.
//
//	peer send NAMESRV TOPIC COUNT             messages 0..COUNT-1: the even ones each by itself, the odd ones in one
//	                                          batch; each with its number as tag "even" or "odd", key and property
//	peer consume NAMESRV GROUP TOPIC TAGS COUNT    consumes until it has so many
//
// Either writes a line of JSON for each message to stdout.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// What requests are signed with; without it the client signs nothing.
func credentials() primitive.Credentials {
	return primitive.Credentials{
		AccessKey: os.Getenv("ROCKETMQ_ACCESS_KEY"),
		SecretKey: os.Getenv("ROCKETMQ_SECRET_KEY"),
	}
}

func message(topic string, number int) *primitive.Message {
	message := primitive.NewMessage(topic, []byte(strconv.Itoa(number)))
	message.WithTag([]string{"even", "odd"}[number%2])
	message.WithKeys([]string{fmt.Sprintf("key%d", number)})
	message.WithProperty("number", strconv.Itoa(number))
	return message
}

func send(namesrv, topic string, count int) {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{namesrv}),
		producer.WithGroupName("GID_go_producer"),
		producer.WithRetry(0),
		producer.WithCredentials(credentials()),
	)
	check(err)
	check(p.Start())
	var batch []*primitive.Message
	results := json.NewEncoder(os.Stdout)
	for number := 0; number < count; number++ {
		if number%2 == 1 {
			batch = append(batch, message(topic, number))
			continue
		}
		result, err := p.SendSync(context.Background(), message(topic, number))
		check(err)
		check(results.Encode(map[string]any{"status": result.Status, "msgId": result.MsgID}))
	}
	result, err := p.SendSync(context.Background(), batch...)
	check(err)
	check(results.Encode(map[string]any{"status": result.Status, "msgId": result.MsgID}))
	check(p.Shutdown())
}

func consume(namesrv, group, topic, tags string, count int) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(credentials()),
	)
	check(err)
	var lock sync.Mutex
	results := json.NewEncoder(os.Stdout)
	seen := 0
	done := make(chan struct{})
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	check(c.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, each := range messages {
			check(results.Encode(map[string]any{
				"body": string(each.Body), "tags": each.GetTags(), "keys": each.GetKeys(),
				"number": each.GetProperty("number"), "queueId": each.Queue.QueueId, "queueOffset": each.QueueOffset,
				"msgId": each.MsgId,
			}))
			if seen++; seen == count {
				close(done)
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		check(fmt.Errorf("%d messages of %d after a minute", seen, count))
	}
	check(c.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	arguments := os.Args[2:]
	count, err := strconv.Atoi(arguments[len(arguments)-1])
	check(err)
	switch os.Args[1] {
	case "send":
		send(arguments[0], arguments[1], count)
	case "consume":
		consume(arguments[0], arguments[1], arguments[2], arguments[3], count)
	}
}
