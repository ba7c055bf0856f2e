"""llama-index's embedding and reranker for text-embeddings-inference."""

import asyncio

from asking import KEY, MODEL, QUERY, TEXTS, URL, failure, tell
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as Reranker

given = {"model_name": MODEL, "base_url": URL, "text_instruction": "", "query_instruction": ""}
client = TextEmbeddingsInference(auth_token=KEY, **given)
stranger = TextEmbeddingsInference(auth_token="wrong", **given)
reranker = Reranker(base_url=URL, auth_token=f"Bearer {KEY}", top_n=len(TEXTS))
nodes = [NodeWithScore(node=TextNode(text=text, id_=str(i))) for i, text in enumerate(TEXTS)]
ranked = {
    int(one.node.id_): one.score for one in reranker.postprocess_nodes(nodes, query_str=QUERY)
}
tell(
    vectors=client.get_text_embedding_batch(TEXTS),
    others=[asyncio.run(client.aget_text_embedding_batch(TEXTS))],
    scores=[[ranked[index] for index in range(len(TEXTS))]],
    refused=failure(lambda: stranger.get_text_embedding("a")),
)
