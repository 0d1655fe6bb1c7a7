"""SageMaker's runtime around LMI's answers."""
